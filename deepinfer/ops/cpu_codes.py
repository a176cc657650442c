"""Number formats on the CPU by integer arithmetic and tables: the bits of `formats`, in less time.

A narrow float is a wide one with a smaller exponent: scaled so that its least normal number meets
that of the wide type, rounding to it is rounding an integer, also below the normal numbers. Knows
no operation.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from deepinfer.arch import Record, RecordFormat
from deepinfer.ops import formats
from deepinfer.ops.formats import (
    FP8_GROUP,
    Quantised,
    decode_e2m1,
    decode_e4m3,
    decode_e8m0,
    encode_e4m3,
    quantise_fp8,
)

_FP8_FLOOR = 1e-4  # as in `formats.quantise_fp8`, which defines the bits
_E4M3_MAX = 448.0
_E2M1_MAX = 6.0
_MANTISSA = 0x7FFFFF
_SHIFT = 120  # between the exponents of fp32 and E4M3
_LARGEST = 254 - _SHIFT  # scale byte whose factor, times 2^120, is still finite
_CACHED = 1 << 17  # numbers encoded at a time, so that a processor's cache holds them
_SIGN_AND_SIZE = -0x7810  # bits 15 and 4 to 10 of an int16


class Decoded(Quantised):
    """An FP8 pair that carries its values, so that its readers need not decode it.

    values [*, K] bf16, exact.
    """

    values: Tensor


def decoded(x: Tensor | Quantised) -> Tensor:
    """The exact values of a product's FP8 input, bf16 or fp32; a plain `x` is quantised first."""
    if isinstance(x, Decoded):
        return x.values
    if isinstance(x, Quantised):
        return decode(x.codes, x.scale, "fp8_ue8m0_32")
    rounded = _round(x)
    if rounded is None:
        pair = quantise_fp8(x)
        return decode(pair.codes, pair.scale, "fp8_ue8m0_32")
    return rounded.values()


def quantise(values: Tensor) -> Quantised:
    """The bits of `formats.quantise_fp8`; the result is `Decoded` wherever numbers are ordinary.

    Args:
        values: [*, K] bf16 or fp32, K a multiple of 32.
    """
    rounded = _round(values)
    if rounded is None:
        return quantise_fp8(values)
    pair = Decoded(rounded.codes(), torch.from_numpy(rounded.exponent.astype(np.uint8)))
    pair.values = rounded.values()
    return pair


class _Rounded(NamedTuple):
    """Groups over their scales, rounded half to even to E4M3.

    bits [*, groups, 32] are those of the rounded numbers times 2^-120 in fp32, exponent
    [*, groups] the scale bytes; both int32.
    """

    bits: NDArray[np.int32]
    exponent: NDArray[np.int32]

    def values(self) -> Tensor:
        """What they mean, bf16 [*, K]."""
        grow = ((self.exponent + _SHIFT) << 23).view(np.float32)
        exact = self.bits.view(np.float32) * grow[..., None]
        return torch.from_numpy(exact).flatten(-2).to(torch.bfloat16)

    def codes(self) -> Tensor:
        """E4M3 bytes [*, K]."""
        found = self.bits >> 24
        found &= 0x80
        size = self.bits >> 20
        size &= 0x7F
        found |= size
        return torch.from_numpy(found.astype(np.uint8)).flatten(-2)


def _round(x: Tensor) -> _Rounded | None:
    """Round x [*, K]; NumPy calls, as a step of few tokens spends its time on calling.

    None if there are no numbers, or wider ones than bf16 (they could be rounded twice), or some
    that are too large or not finite.
    """
    if x.dtype != torch.bfloat16 or not x.numel():
        return None
    groups = x.to(torch.float32).unflatten(-1, (-1, FP8_GROUP))
    size = groups.abs().amax(-1).clamp_(min=_FP8_FLOOR).numpy()
    size /= _E4M3_MAX
    exponent = size.view(np.int32)
    exponent += _MANTISSA  # carries into the exponent unless the mantissa is zero: rounds up
    exponent >>= 23
    exponent &= 0x1FF
    if exponent.max() >= _LARGEST:
        return None
    shrink = ((_LARGEST - exponent) << 23).view(np.float32)
    bits = (groups.numpy() * shrink[..., None]).view(np.int32)
    half = bits >> 20
    half &= 1
    half += 0x7FFFF
    bits += half
    bits &= -0x100000
    return _Rounded(bits, exponent)


@cache
def _byte_pairs(form: str) -> Tensor:
    """What two neighbouring code bytes decode to: bf16 numbers packed into one integer.

    [65536] int32 (two E4M3 numbers) or int64 (four E2M1 numbers), indexed by the two bytes read
    as one native integer.
    """
    pairs = torch.arange(1 << 16).to(torch.uint16).view(torch.uint8).view(-1, 2)
    if form == "fp8_ue8m0_32":
        return decode_e4m3(pairs).to(torch.bfloat16).view(torch.int32).flatten()
    return decode_e2m1(pairs).to(torch.bfloat16).view(torch.int64).flatten()


@cache
def _sizes(form: str) -> Tensor:
    """[256] fp32, what a scale byte means."""
    every = torch.arange(256, dtype=torch.uint8)
    return decode_e4m3(every) if form == "fp4_e4m3_16" else decode_e8m0(every)


def decode(codes: Tensor, scale: Tensor, form: RecordFormat) -> Tensor:
    """Exact values of codes and scales, fp32: the bits of `formats.decode_parts`.

    Args:
        codes: [*, bytes] uint8, an even number of bytes.
        scale: [*, groups] uint8.
        form: a quantised `RecordFormat`.
    """
    if form == "fp8_ue8m0_32" and _ordinary(codes, scale):
        return _decode_fp8(codes, scale)
    if not codes.numel():
        return formats.decode_parts(codes, scale, form)
    index = codes.contiguous().view(torch.uint16).to(torch.int32)
    values = _byte_pairs(form).index_select(0, index.flatten()).view(torch.bfloat16)
    sizes = _sizes(form).index_select(0, scale.flatten().to(torch.int32))
    values = values.view(len(sizes), -1).to(torch.float32).mul_(sizes.unsqueeze(1))
    return values.view(*codes.shape[:-1], -1)


def _ordinary(codes: Tensor, scale: Tensor) -> bool:
    """Whether no E4M3 code is NaN (127 or 255) and no scale too large for `_decode_fp8`."""
    if not codes.numel():
        return False
    negative, positive, largest = codes.amax(), codes.view(torch.int8).amax(), scale.amax()
    return int(negative) < 255 and int(positive) < 127 and int(largest) <= _LARGEST


def _decode_fp8(codes: Tensor, scale: Tensor) -> Tensor:
    """By shifts: an E4M3 code is a bf16 number whose exponent is 120 too small."""
    bits = codes.view(torch.int8).to(torch.int16)
    bits = bits.bitwise_left_shift_(4).bitwise_and_(_SIGN_AND_SIZE)
    exponent = scale.to(torch.int32).add_(_SHIFT).bitwise_left_shift_(23)
    groups = bits.view(torch.bfloat16).to(torch.float32).unflatten(-1, (-1, FP8_GROUP))
    return groups.mul_(exponent.view(torch.float32).unsqueeze(-1)).flatten(-2)


def decode_records(data: Tensor, record: Record) -> Tensor:
    """Values of quantised records: [*, record.bytes] uint8 -> [*, width] fp32, exact."""
    split = record.code_bytes
    return decode(data[..., :split], data[..., split:], record.format)


def encode_record(values: Tensor, record: Record) -> Tensor:
    """The bits of `formats.encode_record`.

    Args:
        values: [*, width] bf16.
        record: a quantised format.
    """
    if record.format == "fp8_ue8m0_32":
        return torch.cat(tuple(quantise(values)), dim=-1)
    if values.dtype != torch.bfloat16 or not values.numel():
        return formats.encode_record(values, record)
    if values.numel() > _CACHED and len(values) > 1:
        some = max(1, len(values) * _CACHED // values.numel())
        return torch.cat([encode_record(part, record) for part in values.split(some)])
    if record.format == "fp4_ue8m0_32":
        groups = values.to(torch.float32).unflatten(-1, (-1, 32))
        size = groups.abs().amax(-1).clamp_(min=_E2M1_MAX * 2.0**-126).div_(_E2M1_MAX)
        exponent = size.view(torch.int32).add_(_MANTISSA).bitwise_right_shift_(23)
        if int(exponent.amax()) > 253 or int(exponent.amin()) < 0:
            return formats.encode_record(values, record)
        scale = exponent.to(torch.uint8)
        shrink = (254 - exponent).bitwise_left_shift_(23).view(torch.float32)
        groups = groups.mul_(shrink.unsqueeze(-1))
    else:
        groups = values.to(torch.float32).unflatten(-1, (-1, 16))
        size = groups.abs().amax(-1)
        if not bool(torch.isfinite(size).all()):
            return formats.encode_record(values, record)
        scale = encode_e4m3(size.clamp_(min=_E2M1_MAX * 2.0**-9).div_(_E2M1_MAX))
        groups = groups.div_(decode_e4m3(scale).unsqueeze(-1)).clamp_(-_E2M1_MAX, _E2M1_MAX)
    return torch.cat((_pack_e2m1(groups).flatten(-2), scale), dim=-1)


def _pack_e2m1(x: Tensor) -> Tensor:
    """Round x [*, n] fp32, at most 6 in size, to E2M1 codes and pack pairs: [*, n / 2] uint8.

    Changes `x`.
    """
    bits = x.mul_(2.0**-126).view(torch.int32)
    half = (bits >> 22).bitwise_and_(1).add_(0x1FFFFF)
    bits = bits.add_(half)
    codes = (bits >> 28).bitwise_and_(8).bitwise_or_((bits >> 22).bitwise_and_(7))
    pairs = codes.to(torch.uint8).view(torch.int16)
    return (pairs >> 4).bitwise_or_(pairs).bitwise_and_(0xFF).to(torch.uint8)
