"""Adds a sub-layer's output to the residual streams (single-pass mHC). Knows no weights."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Pending(NamedTuple):
    """A sub-layer's output that is not yet in the streams, with how to add it.

    output [tokens, hidden] bf16 or fp32; post [tokens, m] and comb [tokens, m, m] fp32, the first
    index of comb is the source stream.
    """

    output: Tensor
    post: Tensor
    comb: Tensor

    def rows(self, index: Tensor) -> Pending:
        """What is pending for some tokens."""
        return Pending(self.output[index], self.post[index], self.comb[index])


def mhc_update(streams: Tensor, pending: Pending) -> Tensor:
    """new X_k = post_k * y + sum_j comb[j, k] * X_j, in fp32, rounded once (D22).

    Args:
        streams: [tokens, m, hidden], bf16 or fp32.
        pending: what to add.

    Returns:
        New streams, shape and dtype of `streams`.
    """
    x = streams.to(torch.float32)
    added = pending.post.unsqueeze(-1) * pending.output.to(torch.float32).unsqueeze(-2)
    mixed = torch.zeros_like(x)
    for source in range(x.shape[1]):  # a written-out sum keeps its order on every device
        mixed += pending.comb[:, source, :, None] * x[:, source, None, :]
    return (added + mixed).to(streams.dtype)
