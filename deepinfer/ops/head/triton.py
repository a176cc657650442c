"""The head in Triton: a bf16 product with fp32 sums in a fixed order."""

from __future__ import annotations

import torch
from torch import Tensor

from deepinfer.ops.triton_product import product, refuses_plain


def pack(weight: Tensor) -> Tensor:
    """The weight as it is.

    Raises:
        ValueError: it is not bf16.
    """
    if weight.dtype != torch.bfloat16:
        raise ValueError(f"head: the triton kernel takes a bf16 weight, not {weight.dtype}")
    return weight.contiguous()


def head(hidden: Tensor, weight: Tensor) -> Tensor:
    """Logits of bf16 hidden states: [tokens, d] x [vocab, d] -> fp32 [tokens, vocab]."""
    return product(hidden.contiguous(), weight, torch.float32)


def refuses(*, arch: str, quantised: bool, hidden: int, **_facts: object) -> str | None:
    """None if the kernel serves, else why not; facts as `Op.bind` passes them."""
    return refuses_plain(arch=arch, quantised=quantised, hidden=hidden)
