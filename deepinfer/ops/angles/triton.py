"""Rotation angles in one Triton launch, float64 inside as in the reference.

Knows nothing of what is rotated.
"""
# Triton is optional and untyped: a checker may not find it.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false, reportIndexIssue=false

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from deepinfer.ops.portable import refuses_arch
from deepinfer.ops.rotation import Rotation

_BLOCK = 128


@triton.jit(do_not_specialize=["size"])
def _angles(
    position_ptr, freq_ptr, cos_ptr, sin_ptr, size, HALF: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    gdc_wait()
    gdc_launch_dependents()
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    here = at < size
    position = tl.load(position_ptr + at // HALF, here, 0).to(tl.float32)
    angle = (position * tl.load(freq_ptr + at % HALF, here, 0.0)).to(tl.float64)
    tl.store(cos_ptr + at, tl.cos(angle).to(tl.float32), here)
    tl.store(sin_ptr + at, tl.sin(angle).to(tl.float32), here)


def angles(positions: Tensor, freqs: Tensor) -> Rotation:
    """As the reference."""
    shape = (*positions.shape, len(freqs))
    cos, sin = (torch.empty(shape, dtype=torch.float32, device=freqs.device) for _ in range(2))
    if cos.numel():
        _angles[(triton.cdiv(cos.numel(), _BLOCK),)](
            positions.contiguous(), freqs, cos, sin, cos.numel(), len(freqs), _BLOCK,
            num_warps=4, enable_fp_fusion=False, launch_pdl=True,
        )  # fmt: skip
    return Rotation(cos, sin)


def pack(weights: Tensor) -> Tensor:
    """There is nothing to pack."""
    return weights


def refuses(*, arch: str, **_facts: object) -> str | None:
    """None if the kernel serves, else why not; facts as `Op.bind` passes them."""
    return refuses_arch(arch)
