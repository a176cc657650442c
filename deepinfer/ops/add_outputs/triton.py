"""The sum of two outputs in one Triton launch that overlaps with others. Knows neither."""
# Triton is optional and untyped: a checker may not find it.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false, reportIndexIssue=false

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from deepinfer.ops.portable import refuses_arch

_BLOCK = 1024


@triton.jit(do_not_specialize=["tokens"])
def _sum_of_two(
    one_ptr, two_ptr, out_ptr, tokens, WIDTH: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    gdc_wait()
    gdc_launch_dependents()
    size = tokens.to(tl.int64) * WIDTH  # of a known divisor, so that loads take 16 bytes
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    one = tl.load(one_ptr + at, at < size, 0.0).to(tl.float32)
    two = tl.load(two_ptr + at, at < size, 0.0).to(tl.float32)
    tl.store(out_ptr + at, (one + two).to(out_ptr.dtype.element_ty), at < size)


def add_outputs(routed: Tensor, shared: Tensor, *, dtype: torch.dtype) -> Tensor:
    """As the reference."""
    out = torch.empty(routed.shape, dtype=dtype, device=routed.device)
    if out.numel():
        _sum_of_two[(triton.cdiv(out.numel(), _BLOCK),)](
            routed.contiguous(), shared.contiguous(), out, *routed.shape, _BLOCK,
            num_warps=4, launch_pdl=True,
        )  # fmt: skip
    return out


def pack(weights: Tensor) -> Tensor:
    """There is nothing to pack."""
    return weights


def refuses(*, arch: str, **_facts: object) -> str | None:
    """None if the kernel serves, else why not; facts as `Op.bind` passes them."""
    return refuses_arch(arch)
