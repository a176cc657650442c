"""Index queries in Triton: rotated FP4 records and head weights, 8 heads of a token a program."""
# Triton is optional and untyped: a checker may not find it.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false, reportIndexIssue=false

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from deepinfer.arch import Record
from deepinfer.ops.index_inputs.reference import IndexQueries
from deepinfer.ops.rotation import Rotation
from deepinfer.ops.triton_product import parts, refuses_plain
from deepinfer.ops.triton_rows import turned

_HEADS = 8  # most heads a program; a power of two that divides their number


@triton.jit
def fp4_code(value):
    """fp32 -> E2M1 code 0..15 (int32), half to even, saturating at 6; bit 3 is the sign."""
    size = tl.abs(value)
    code = (size > 0.25).to(tl.int32) + (size >= 0.75).to(tl.int32) + (size > 1.25).to(tl.int32)
    code += (size >= 1.75).to(tl.int32) + (size > 2.5).to(tl.int32) + (size >= 3.5).to(tl.int32)
    code += (size > 5.0).to(tl.int32)
    return code | (value.to(tl.int32, bitcast=True) >> 31 & 8)


@triton.jit(do_not_specialize=["tokens", "scale"])
def _inputs(
    q_ptr, part_ptr, cos_ptr, sin_ptr, record_ptr, weight_ptr, tokens, scale,
    HEADS: tl.constexpr, PAIRS: tl.constexpr, ROTATED: tl.constexpr, SEGMENTS: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    gdc_wait()
    gdc_launch_dependents()
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    weight = tl.zeros([BLOCK], tl.float32)
    for s in tl.static_range(SEGMENTS):
        weight += tl.load(part_ptr + (s * tokens + token) * HEADS + head)
    tl.store(weight_ptr + token * HEADS + head, weight.to(tl.bfloat16).to(tl.float32) * scale)

    vector = (token * HEADS + head)[:, None] * (2 * PAIRS) + tl.arange(0, 2 * PAIRS)[None, :]
    both = tl.reshape(tl.load(q_ptr + vector).to(tl.float32), (BLOCK, PAIRS, 2))
    even, odd = tl.split(both)
    pair = tl.arange(0, PAIRS)[None, :]
    cos_ptr += token * ROTATED
    sin_ptr += token * ROTATED
    even, odd = turned(even, odd, cos_ptr, sin_ptr, pair, PAIRS - ROTATED)
    even, odd = even.to(tl.bfloat16).to(tl.float32), odd.to(tl.bfloat16).to(tl.float32)
    size = tl.reshape(tl.maximum(tl.abs(even), tl.abs(odd)), (BLOCK, PAIRS // 16, 16))
    size = tl.maximum(tl.max(size, 2), 6.0 * 1.1754943508222875e-38)
    bits = tl.div_rn(size, 6.0).to(tl.int32, bitcast=True)
    exponent = (bits >> 23) + ((bits & 0x7FFFFF) != 0).to(tl.int32)
    inverse = ((254 - exponent) << 23).to(tl.float32, bitcast=True)[:, :, None]
    even = tl.reshape(tl.reshape(even, (BLOCK, PAIRS // 16, 16)) * inverse, (BLOCK, PAIRS))
    odd = tl.reshape(tl.reshape(odd, (BLOCK, PAIRS // 16, 16)) * inverse, (BLOCK, PAIRS))
    record = (token * HEADS + head)[:, None] * (PAIRS + PAIRS // 16)
    codes = fp4_code(even) | (fp4_code(odd) << 4)
    tl.store(record_ptr + record + pair, codes.to(tl.uint8))
    group = tl.arange(0, PAIRS // 16)[None, :]
    tl.store(record_ptr + record + PAIRS + group, exponent.to(tl.uint8))


def index_inputs(
    q: Tensor,
    hidden: Tensor,
    weights_proj: Tensor,
    by: Rotation,
    *,
    scale: float,
    record: Record,
) -> IndexQueries:
    """As the reference, for bf16 tensors and FP4 records.

    Raises:
        ValueError: the record is another format.
    """
    if record.format != "fp4_ue8m0_32":
        raise ValueError(f"index_inputs: writes FP4 records, not {record.format}")
    sums = parts(hidden.contiguous(), weights_proj)
    count, tokens, heads = sums.shape
    records = torch.empty((tokens, heads, record.bytes), dtype=torch.uint8, device=q.device)
    weights = torch.empty((tokens, heads), dtype=torch.float32, device=q.device)
    block = min(_HEADS, heads & -heads)
    if tokens:
        _inputs[(tokens, heads // block)](
            q.contiguous(), sums, by.cos, by.sin, records, weights, tokens, scale,
            heads, record.width // 2, by.cos.shape[1], count, block,
            num_warps=4, enable_fp_fusion=False, launch_pdl=True,
        )  # fmt: skip
    return IndexQueries(records, weights)


def pack(weights_proj: Tensor) -> Tensor:
    """The projection as it is."""
    return weights_proj.contiguous()


def refuses(*, arch: str, quantised: bool, hidden: int, **_facts: object) -> str | None:
    """None if the kernels serve, else why not; facts as `Op.bind` passes them."""
    return refuses_plain(arch=arch, quantised=quantised, hidden=hidden)
