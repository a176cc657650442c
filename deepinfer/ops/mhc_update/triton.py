"""Residual-stream update in Triton, some columns of a token a program. Knows no weights."""
# Triton is optional and untyped: a checker may not find it.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false, reportIndexIssue=false

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from deepinfer.ops.mhc_update.reference import Pending
from deepinfer.ops.portable import refuses_arch

_COLUMNS = 1024
_STREAMS = 4


@triton.jit
def mixed(x0, x1, x2, x3, y, c0, c1, c2, c3, post):
    """post * y + the sum of c_j * x_j in the order of the reference, rounded to bf16."""
    total = c0 * x0.to(tl.float32) + c1 * x1.to(tl.float32)
    total = total + c2 * x2.to(tl.float32) + c3 * x3.to(tl.float32)
    return (post * y.to(tl.float32) + total).to(tl.bfloat16)


@triton.jit
def _update(
    x_ptr, y_ptr, post_ptr, comb_ptr, new_ptr, HIDDEN: tl.constexpr, COLUMNS: tl.constexpr
):  # fmt: skip
    gdc_wait()
    gdc_launch_dependents()
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < HIDDEN
    x_ptr += token * 4 * HIDDEN + column
    y = tl.load(y_ptr + token * HIDDEN + column, inside, 0.0)
    x0 = tl.load(x_ptr, inside, 0.0)
    x1 = tl.load(x_ptr + HIDDEN, inside, 0.0)
    x2 = tl.load(x_ptr + 2 * HIDDEN, inside, 0.0)
    x3 = tl.load(x_ptr + 3 * HIDDEN, inside, 0.0)
    new_ptr += token * 4 * HIDDEN + column
    comb_ptr += token * 16
    for k in tl.static_range(4):
        c0, c1 = tl.load(comb_ptr + k), tl.load(comb_ptr + 4 + k)
        c2, c3 = tl.load(comb_ptr + 8 + k), tl.load(comb_ptr + 12 + k)
        post = tl.load(post_ptr + token * 4 + k)
        new = mixed(x0, x1, x2, x3, y, c0, c1, c2, c3, post)
        tl.store(new_ptr + k * HIDDEN, new, inside)


def mhc_update(streams: Tensor, pending: Pending) -> Tensor:
    """As the reference and with its bits, for bf16 streams [tokens, 4, hidden], contiguous.

    Raises:
        ValueError: the streams are not bf16.
    """
    if streams.dtype != torch.bfloat16:
        raise ValueError(f"mhc_update: streams are {streams.dtype}; use reference")
    tokens, _, hidden = streams.shape
    new = torch.empty_like(streams)
    if tokens:
        # Without fusing multiply and add, so that the streams are the reference's bits.
        _update[(tokens, triton.cdiv(hidden, _COLUMNS))](
            streams, pending.output, pending.post, pending.comb, new, hidden, _COLUMNS,
            num_warps=4, enable_fp_fusion=False, launch_pdl=True,
        )  # fmt: skip
    return new


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
