"""The mean of the streams in one Triton launch. Knows no layers."""
# Triton is optional and untyped: a checker may not find it.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false, reportIndexIssue=false

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from deepinfer.ops.portable import refuses_arch

_BLOCK = 1024


@triton.jit
def _mean(stream_ptr, out_ptr, WIDTH: tl.constexpr, STREAMS: tl.constexpr, BLOCK: tl.constexpr):
    gdc_wait()
    gdc_launch_dependents()
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < WIDTH
    total = tl.zeros([BLOCK], tl.float32)
    for stream in tl.static_range(STREAMS):
        at = (token * STREAMS + stream) * WIDTH + column
        total += tl.load(stream_ptr + at, inside, 0.0).to(tl.float32)
    mean = (total / STREAMS).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + token * WIDTH + column, mean, inside)


def stream_mean(streams: Tensor) -> Tensor:
    """As the reference."""
    tokens, count, width = streams.shape
    out = streams.new_empty((tokens, width))
    if tokens:
        _mean[(tokens, triton.cdiv(width, _BLOCK))](
            streams.contiguous(), out, width, count, _BLOCK, num_warps=4, launch_pdl=True
        )
    return out


def pack(weights: Tensor) -> Tensor:
    """There is nothing to pack."""
    return weights


def refuses(*, arch: str, **_facts: object) -> str | None:
    """None if the kernel serves, else why not; facts as `Op.bind` passes them."""
    return refuses_arch(arch)
