"""Stream collapse and norm in Triton, one program a token. Knows no sub-layer."""
# Triton is optional and untyped: a checker may not find it.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false, reportIndexIssue=false

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from deepinfer.ops.mhc_collapse.reference import Collapsed
from deepinfer.ops.portable import refuses_arch

_COLUMNS = 1024
_STREAMS = 4


@triton.jit(do_not_specialize=["eps"])
def _collapse(
    x_ptr, pre_ptr, norm_ptr, plain_ptr, normed_ptr, eps,
    HIDDEN: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """One token; what is summed is kept in registers until the norm is known."""
    gdc_wait()
    gdc_launch_dependents()
    token = tl.program_id(0).to(tl.int64)
    x_ptr += token * 4 * HIDDEN
    pre_ptr += token * 4
    squares = tl.zeros([COLUMNS], tl.float32)
    kept = ()
    for first in tl.static_range(0, HIDDEN, COLUMNS):
        column = first + tl.arange(0, COLUMNS)
        total = tl.zeros([COLUMNS], tl.float32)
        for k in tl.static_range(4):
            x = tl.load(x_ptr + k * HIDDEN + column, column < HIDDEN, 0.0).to(tl.float32)
            total += tl.load(pre_ptr + k) * x
        plain = total.to(tl.bfloat16)
        kept = kept + (plain,)  # Triton has no list
        squares += plain.to(tl.float32) * plain.to(tl.float32)
    norm = tl.rsqrt(tl.sum(squares, 0) / HIDDEN + eps)
    for part in tl.static_range(0, (HIDDEN + COLUMNS - 1) // COLUMNS):
        column = part * COLUMNS + tl.arange(0, COLUMNS)
        weight = tl.load(norm_ptr + column, column < HIDDEN, 0.0).to(tl.float32)
        normed = (weight * (kept[part].to(tl.float32) * norm)).to(tl.bfloat16)
        tl.store(plain_ptr + token * HIDDEN + column, kept[part], column < HIDDEN)
        tl.store(normed_ptr + token * HIDDEN + column, normed, column < HIDDEN)


def mhc_collapse(streams: Tensor, pre: Tensor, norm: Tensor, eps: float) -> Collapsed:
    """As the reference, for bf16 streams [tokens, 4, hidden], contiguous; `plain` has its bits.

    Raises:
        ValueError: the streams are not bf16.
    """
    if streams.dtype != torch.bfloat16:
        raise ValueError(f"mhc_collapse: streams are {streams.dtype}; use reference")
    tokens, _, hidden = streams.shape
    plain, normed = torch.empty((2, tokens, hidden), dtype=torch.bfloat16, device=streams.device)
    if tokens:
        _collapse[(tokens,)](
            streams, pre, norm, plain, normed, eps, hidden, _COLUMNS,
            num_warps=8, enable_fp_fusion=False, launch_pdl=True,
        )  # fmt: skip
    return Collapsed(plain, normed)


def pack(weights: Any) -> Any:
    """There are none."""
    return weights


def refuses(*, arch: str, quantised: bool, streams: int, **_facts: object) -> str | None:
    """None if the kernel serves, else why not; facts as `Op.bind` passes them."""
    if why_not := refuses_arch(arch):
        return why_not
    if not quantised:
        return "takes bf16 streams only"
    return None if streams == _STREAMS else f"{streams} streams; serves {_STREAMS}"
