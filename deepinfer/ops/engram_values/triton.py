"""Values of Engram rows in one Triton launch. Knows neither tables nor hashes."""
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


@triton.jit(do_not_specialize=["groups"])
def _values(code_ptr, scale_ptr, out_ptr, groups, BLOCK: tl.constexpr):
    """BLOCK values; a group of 32 shares a scale."""
    gdc_wait()
    gdc_launch_dependents()
    group = tl.program_id(0).to(tl.int64) * (BLOCK // 32) + tl.arange(0, BLOCK // 32)
    here = (group < groups)[:, None]
    at = group[:, None] * 32 + tl.arange(0, 32)[None, :]
    byte = tl.load(scale_ptr + group, group < groups, 0).to(tl.int32)
    size = tl.where(byte == 0, 1 << 22, byte << 23).to(tl.float32, bitcast=True)
    code = tl.load(code_ptr + at, here, 0).to(tl.float8e4nv, bitcast=True)
    value = code.to(tl.float32) * size[:, None]
    tl.store(out_ptr + at, value.to(out_ptr.dtype.element_ty), here)


def engram_values(codes: Tensor, scale: Tensor, *, dtype: torch.dtype) -> Tensor:
    """As the reference."""
    tokens, rows, width = codes.shape
    out = torch.empty((tokens, rows * width), dtype=dtype, device=codes.device)
    if out.numel():
        _values[(triton.cdiv(out.numel(), _BLOCK),)](
            codes.contiguous(), scale.contiguous(), out, out.numel() // 32, _BLOCK,
            num_warps=4, launch_pdl=True,
        )  # fmt: skip
    return out


def pack(weights: Tensor) -> Tensor:
    """There is nothing to pack."""
    return weights


def refuses(*, arch: str, **_facts: object) -> str | None:
    """None if the kernel serves, else why not; facts as `Op.bind` passes them."""
    return refuses_arch(arch)
