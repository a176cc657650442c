"""Row-wise kernels in Triton: norms, quantisers, activation, rotation. A row's bits stand alone.

Sums run in fp32 in an order that the row's width fixes. Launches overlap (programmatic dependent
launch). Knows nothing of products.
"""
# Triton is optional and untyped: a checker may not find it.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false, reportIndexIssue=false

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from deepinfer.ops.formats import Quantised

_BLOCK = 1024


@triton.jit
def fp8_groups(groups):
    """FP8 of [groups, 32] fp32: codes uint8 [groups, 32] and scale bytes int32 [groups]."""
    size = tl.maximum(tl.max(tl.abs(groups), 1), 1e-4)
    bits = tl.div_rn(size, 448.0).to(tl.int32, bitcast=True)
    exponent = (bits >> 23) + ((bits & 0x7FFFFF) != 0).to(tl.int32)
    inverse = ((254 - exponent) << 23).to(tl.float32, bitcast=True)
    codes = (groups * inverse[:, None]).to(tl.float8e4nv).to(tl.uint8, bitcast=True)
    return codes, exponent


@triton.jit
def store_fp8(value, codes_ptr, bytes_ptr, first, end, SIZE: tl.constexpr):
    """FP8 of SIZE bf16-rounded values to columns `first`... below `end` of a row."""
    codes, exponent = fp8_groups(tl.reshape(value, (SIZE // 32, 32)))
    column = first + tl.arange(0, SIZE)
    tl.store(codes_ptr + column, tl.reshape(codes, (SIZE,)), column < end)
    group = first // 32 + tl.arange(0, SIZE // 32)
    tl.store(bytes_ptr + group, exponent.to(tl.uint8), group < end // 32)


@triton.jit(do_not_specialize=["eps"])
def _norm_quantise(
    x_ptr, weight_ptr, hidden_ptr, codes_ptr, bytes_ptr, eps,
    N: tl.constexpr, SIZE: tl.constexpr, QUANTISE: tl.constexpr,
):  # fmt: skip
    gdc_wait()
    gdc_launch_dependents()
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, SIZE)
    inside = column < N
    x = tl.load(x_ptr + row * N + column, inside, 0.0).to(tl.float32)
    weight = tl.load(weight_ptr + column, inside, 0.0).to(tl.float32)
    hidden = (weight * (x * tl.rsqrt(tl.sum(x * x, 0) / N + eps))).to(tl.bfloat16)
    tl.store(hidden_ptr + row * N + column, hidden, inside)
    if QUANTISE:
        wide = hidden.to(tl.float32)
        store_fp8(wide, codes_ptr + row * N, bytes_ptr + row * (N // 32), 0, N, SIZE)


@triton.jit
def summed(ptr, step, inside, SEGMENTS: tl.constexpr):
    """Sum of segments `step` elements apart, first to last, rounded to bf16; fp32."""
    total = tl.load(ptr, inside, 0.0).to(tl.float32)
    if SEGMENTS > 1:
        total += 0.0  # a sum of segments starts from zero everywhere: no negative zero
        for s in tl.static_range(1, SEGMENTS):
            total += tl.load(ptr + s * step, inside, 0.0)
    return total.to(tl.bfloat16).to(tl.float32)


@triton.jit(do_not_specialize=["tokens"])
def _sum_quantise(
    x_ptr, codes_ptr, bytes_ptr, tokens,
    N: tl.constexpr, SEGMENTS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """FP8 of the bf16-rounded sum of segments of [tokens, N]."""
    gdc_wait()
    gdc_launch_dependents()
    size = tokens * N  # of a known divisor, so that loads take 16 bytes
    first = tl.program_id(0).to(tl.int64) * BLOCK
    column = first + tl.arange(0, BLOCK)
    value = summed(x_ptr + column, size.to(tl.int64), column < size, SEGMENTS)
    store_fp8(value, codes_ptr, bytes_ptr, first, size, BLOCK)


@triton.jit(do_not_specialize=["tokens", "limit"])
def _swiglu(
    x_ptr, codes_ptr, bytes_ptr, tokens, limit,
    INNER: tl.constexpr, SEGMENTS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """FP8 of bf16(silu(min(gate, limit)) * clamp(up)); gate and up lie side by side in a row, and
    each is the sum of its segments."""
    gdc_wait()
    gdc_launch_dependents()
    row, first = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK
    column = first + tl.arange(0, BLOCK)
    inside = column < INNER
    step = tokens.to(tl.int64) * (2 * INNER)
    x_ptr += row * 2 * INNER + column
    gate, up = (
        summed(x_ptr, step, inside, SEGMENTS),
        summed(x_ptr + INNER, step, inside, SEGMENTS),
    )
    gate, up = tl.minimum(gate, limit), tl.minimum(tl.maximum(up, -limit), limit)
    value = (tl.div_rn(gate, 1 + tl.exp(-gate)) * up).to(tl.bfloat16).to(tl.float32)
    bytes_ptr += row * (INNER // 32)
    store_fp8(value, codes_ptr + row * INNER, bytes_ptr, first, INNER, BLOCK)


@triton.jit
def turned(even, odd, cos_ptr, sin_ptr, pair, KEEP: tl.constexpr):
    """Neighbouring channels rotated; pairs below KEEP stay. `pair` numbers them along the last
    axis; the angles start at pair KEEP. fp32, not rounded."""
    rotates = pair >= KEEP
    cos = tl.load(cos_ptr + (pair - KEEP), rotates, 1.0)
    sin = tl.load(sin_ptr + (pair - KEEP), rotates, 0.0)
    first, second = even * cos - odd * sin, even * sin + odd * cos
    return tl.where(rotates, first, even), tl.where(rotates, second, odd)


@triton.jit(do_not_specialize=["eps"])
def _attention_inputs(
    q_ptr, kv_ptr, weight_ptr, cos_ptr, sin_ptr, out_ptr, record_ptr, eps,
    HEADS: tl.constexpr, PAIRS: tl.constexpr, ROTATED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """BLOCK heads of a token's query rotated; the last program makes its window record."""
    gdc_wait()
    gdc_launch_dependents()
    token = tl.program_id(0).to(tl.int64)
    cos_ptr += token * ROTATED
    sin_ptr += token * ROTATED
    pair = tl.arange(0, PAIRS)
    if tl.program_id(1) < HEADS // BLOCK:
        head = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        vector = (token * HEADS + head)[:, None] * (2 * PAIRS) + tl.arange(0, 2 * PAIRS)[None, :]
        both = tl.reshape(tl.load(q_ptr + vector).to(tl.float32), (BLOCK, PAIRS, 2))
        even, odd = tl.split(both)
        even, odd = turned(even, odd, cos_ptr, sin_ptr, pair[None, :], PAIRS - ROTATED)
        tl.store(out_ptr + vector, tl.interleave(even, odd).to(tl.bfloat16))
    else:
        column = tl.arange(0, 2 * PAIRS)
        x = tl.load(kv_ptr + token * 2 * PAIRS + column).to(tl.float32)
        weight = tl.load(weight_ptr + column).to(tl.float32)
        normed = weight * (x * tl.rsqrt(tl.sum(x * x, 0) / (2 * PAIRS) + eps))
        normed = normed.to(tl.bfloat16).to(tl.float32)
        left, right = tl.split(tl.reshape(normed, (PAIRS, 2)))
        left, right = turned(left, right, cos_ptr, sin_ptr, pair, PAIRS - ROTATED)
        value = tl.interleave(left, right).to(tl.bfloat16).to(tl.float32)
        record_ptr += token * (2 * PAIRS + PAIRS // 16)
        store_fp8(value, record_ptr, record_ptr + 2 * PAIRS, 0, 2 * PAIRS, 2 * PAIRS)


def norm_warps(n: int) -> int:
    """Warps that norm a row of n: four numbers a thread, so that few rows still load at once."""
    return max(4, min(16, triton.next_power_of_2(n) // 128))


def norm_quantise(
    x: Tensor, weight: Tensor, eps: float, *, quantise: bool
) -> tuple[Tensor, Quantised | None]:
    """RMSNorm of bf16 [tokens, n] and, if asked for, its FP8 pair; n a multiple of 32."""
    tokens, n = x.shape
    hidden = torch.empty_like(x)
    codes = torch.empty((tokens, n), dtype=torch.uint8, device=x.device)
    scale = torch.empty((tokens, n // 32), dtype=torch.uint8, device=x.device)
    if tokens:
        _norm_quantise[(tokens,)](
            x, weight, hidden, codes, scale, eps, n, triton.next_power_of_2(n), quantise,
            num_warps=norm_warps(n), enable_fp_fusion=False, launch_pdl=True,
        )  # fmt: skip
    return hidden, Quantised(codes, scale) if quantise else None


def sum_quantise(x: Tensor) -> Quantised:
    """FP8 pair of bf16 [tokens, K], or of the rounded sum of fp32 [segments, tokens, K]."""
    count, (tokens, n) = (x.shape[0] if x.dim() == 3 else 1), x.shape[-2:]
    codes = torch.empty((tokens, n), dtype=torch.uint8, device=x.device)
    scale = torch.empty((tokens, n // 32), dtype=torch.uint8, device=x.device)
    if tokens:
        _sum_quantise[(triton.cdiv(tokens * n, _BLOCK),)](
            x, codes, scale, tokens, n, count, _BLOCK, num_warps=4, launch_pdl=True
        )
    return Quantised(codes, scale)


def swiglu(gate_up: Tensor, limit: float) -> Quantised:
    """Clamped SwiGLU, rounded to bf16, then FP8 [tokens, inner].

    Args:
        gate_up: bf16 [tokens, 2 * inner], or segments whose rounded sum that is, fp32 [segments,
            tokens, 2 * inner].
        limit: config key `swiglu_limit`.
    """
    count, (tokens, both) = (gate_up.shape[0] if gate_up.dim() == 3 else 1), gate_up.shape[-2:]
    inner = both // 2
    codes = torch.empty((tokens, inner), dtype=torch.uint8, device=gate_up.device)
    scale = torch.empty((tokens, inner // 32), dtype=torch.uint8, device=gate_up.device)
    if tokens:
        _swiglu[(tokens, triton.cdiv(inner, _BLOCK))](
            gate_up, codes, scale, tokens, limit, inner, count, _BLOCK,
            num_warps=4, launch_pdl=True,
        )  # fmt: skip
    return Quantised(codes, scale)


def attention_inputs(
    q: Tensor, kv: Tensor, kv_norm: Tensor, cos: Tensor, sin: Tensor, heads: int, eps: float
) -> tuple[Tensor, Tensor]:
    """Rotated queries [tokens, heads, head_dim] bf16 and FP8 window records [tokens, bytes].

    Args:
        q: [tokens, heads * head_dim] bf16.
        kv: [tokens, head_dim] bf16.
        kv_norm: [head_dim].
        cos: fp32 [tokens, rope / 2].
        sin: the same.
        heads: a multiple of 4; head_dim a power of two.
        eps: config key `rms_norm_eps`.
    """
    tokens, width = kv.shape
    rotated = torch.empty((tokens, heads, width), dtype=torch.bfloat16, device=q.device)
    records = torch.empty((tokens, width + width // 32), dtype=torch.uint8, device=q.device)
    if tokens:
        _attention_inputs[(tokens, heads // 4 + 1)](
            q, kv, kv_norm, cos, sin, rotated, records, eps,
            heads, width // 2, cos.shape[1], 4,
            num_warps=4, enable_fp_fusion=False, launch_pdl=True,
        )  # fmt: skip
    return rotated, records
