"""The numbers of sampling inside Triton kernels: integer masses, Gumbel noise, places in the order.

The same integer and float64 steps as `elementary.py` and `noise.py`, so that the bits are equal;
kernels that use them must be launched with `enable_fp_fusion=False`. Knows nothing of rows.
"""
# Triton is optional and untyped: a checker may not find it.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false, reportIndexIssue=false

from __future__ import annotations

import math

import triton
import triton.language as tl
from triton.language.random import philox_impl

from deepinfer.ops.noise import LN2, MINUS_LN_LN2, RATIO
from deepinfer.ops.sample.elementary import ATANH, EXP2, LEAST, LOG2_E, MASS_BITS, MOST_VOCAB

ID_BITS = MOST_VOCAB.bit_length() - 1
_ID_BITS: tl.constexpr = tl.constexpr(ID_BITS)
_TO_INTEGER: tl.constexpr = tl.constexpr(1.5 * 2.0**52)  # adding it rounds half to even
_LEAST: tl.constexpr = tl.constexpr(LEAST)
_LOG2_E: tl.constexpr = tl.constexpr(LOG2_E)
_EXP2: tl.constexpr = tl.constexpr(EXP2)
_TERMS: tl.constexpr = tl.constexpr(len(EXP2))
_ATANH: tl.constexpr = tl.constexpr(ATANH)
_LOG_TERMS: tl.constexpr = tl.constexpr(len(ATANH))
_LOG_2: tl.constexpr = tl.constexpr(math.log(2))
_ROOT: tl.constexpr = tl.constexpr(math.sqrt(0.5))
_ONE: tl.constexpr = tl.constexpr(float(1 << MASS_BITS))
_RATIO: tl.constexpr = tl.constexpr(RATIO)
_RATIO_TERMS: tl.constexpr = tl.constexpr(len(RATIO))
_LN2: tl.constexpr = tl.constexpr(LN2)
_MINUS_LN_LN2: tl.constexpr = tl.constexpr(MINUS_LN_LN2)


@triton.jit
def key_of(scaled, ids):
    """Place in the order (value descending, id ascending) as int64; `scaled` fp32 <= 0."""
    size = (scaled + 0.0).to(tl.int32, bitcast=True) & 0x7FFFFFFF  # no negative zero
    return (size.to(tl.int64) << _ID_BITS) | ids


@triton.jit
def mass_of(key):
    """Mass of a key's value, int64, as `elementary.mass`."""
    size = (key >> _ID_BITS).to(tl.int32).to(tl.float32, bitcast=True)
    x = -(size.to(tl.float64))
    y = tl.maximum(x, _LEAST) * _LOG2_E
    whole = (y + _TO_INTEGER) - _TO_INTEGER
    power = ((whole.to(tl.int64) + 1023) << 52).to(tl.float64, bitcast=True)
    rest = y - whole
    total = tl.zeros_like(rest) + _EXP2[_TERMS - 1]
    for k in tl.static_range(1, _TERMS):
        total = total * rest + _EXP2[_TERMS - 1 - k]
    value = tl.where(x < _LEAST, 0.0, total * power) * _ONE
    return ((value + _TO_INTEGER) - _TO_INTEGER).to(tl.int64)


@triton.jit
def log_of_masses(total):
    """Natural logarithm, float64, of a positive sum of masses; as `elementary.log`."""
    bits = (total.to(tl.float64) * (1 / _ONE)).to(tl.int64, bitcast=True)
    power = ((bits >> 52) - 1022).to(tl.float64)
    mantissa = ((bits & ((1 << 52) - 1)) | (1022 << 52)).to(tl.float64, bitcast=True)
    small = mantissa < _ROOT
    power = tl.where(small, power - 1, power)
    mantissa = tl.where(small, mantissa * 2, mantissa)
    r = (mantissa - 1) / (mantissa + 1)
    square = r * r
    sum_ = tl.zeros_like(r) + _ATANH[_LOG_TERMS - 1]
    for k in tl.static_range(1, _LOG_TERMS):
        sum_ = sum_ * square + _ATANH[_LOG_TERMS - 1 - k]
    return power * _LOG_2 + r * sum_


@triton.jit
def words_of(group, position, sample, seed, PURPOSE: tl.constexpr):
    """Random words uint32 [4 n] of the ids 4 * group ..., group int32 [n]."""
    low, high = seed.to(tl.uint32), (seed >> 32).to(tl.uint32)
    counter = tl.zeros_like(group).to(tl.uint32)
    first, second, third, fourth = philox_impl(
        group.to(tl.uint32), counter + position.to(tl.uint32), counter + PURPOSE,
        counter + sample.to(tl.uint32), low, high,
    )  # fmt: skip
    lanes = tl.join(tl.join(first, third), tl.join(second, fourth))
    return tl.reshape(lanes, (4 * group.shape[0],))


@triton.jit
def _raised(value, shifted, STEP: tl.constexpr, BITS: tl.constexpr):
    """Values below 2^(BITS - STEP) shifted left by STEP."""
    low = value < (1 << (BITS - STEP))
    return tl.where(low, value << STEP, value), shifted + tl.where(low, STEP, 0)


@triton.jit
def _normalised(value, BITS: tl.constexpr):
    """Positive int64 shifted left until bit BITS - 1 is set; also how far."""
    shifted = tl.zeros_like(value)
    for k in tl.static_range(6):
        if (32 >> k) < BITS:
            value, shifted = _raised(value, shifted, 32 >> k, BITS)
    return value, shifted


@triton.jit
def _minus_log2(t):
    """-log2(1 - t) in multiples of 2^-62, for int64 t in multiples of 2^-32, 0 < t <= 1/2."""
    ratio = tl.zeros_like(t) + _RATIO[_RATIO_TERMS - 1]
    for k in tl.static_range(1, _RATIO_TERMS):
        ratio = ((ratio * t) >> 32) + _RATIO[_RATIO_TERMS - 1 - k]
    return ratio * t


@triton.jit
def gumbel_of(word):
    """Gumbel noise fp32 of words (uint32, or int64 of that range), as `noise.gumbel`."""
    mantissa, zeros = _normalised(word.to(tl.int64) | 1, 32)
    e = (zeros << 57) + (_minus_log2((1 << 32) - mantissa) >> 5)
    mantissa, zeros = _normalised(e, 63)
    minus_log2_e = ((zeros - 6) << 28) + (_minus_log2((1 << 32) - (mantissa >> 31)) >> 34)
    fixed = ((minus_log2_e * _LN2) >> 28) + _MINUS_LN_LN2
    return fixed.to(tl.float32) * 9.313225746154785e-10  # 2^-30


@triton.jit
def at_most(word):
    """Bound on the noise of words: -ln u >= 1 - u, so G <= 32 ln 2 - ln(2^32 - word); fp32."""
    rest = ((word | 1) ^ 0xFFFFFFFF) + 1
    return 22.2 - tl.log(rest.to(tl.float32))
