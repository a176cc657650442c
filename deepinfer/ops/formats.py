"""Number formats of weights, activations and cache records: encoding and exact decoding.

All codes and scales travel as uint8 bytes, so that no library ever converts them by value. Knows
nothing of layers. Source: `spec/model.md` 4, 6.4, 6.5; `spec/model-decisions.md` D8-D14.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from deepinfer.arch import Record, RecordFormat

FP8_GROUP = 32
_E4M3_MAX = 448.0
_FP8_FLOOR = 1e-4  # smallest group maximum of an FP8 group, hence scale >= 2^-22
_E2M1_MAX = 6.0


class Quantised(NamedTuple):
    """Activations as E4M3 codes [*, K] and E8M0 scales [*, K / 32], both uint8 bytes."""

    codes: Tensor
    scale: Tensor


class Fp8Weight(NamedTuple):
    """E4M3 codes [out, in] with one E8M0 scale a 32 x 32 block, [ceil(out/32), ceil(in/32)]."""

    codes: Tensor
    scale: Tensor


class Fp4Weight(NamedTuple):
    """Packed E2M1 [*, out, in / 2] (low nibble = even column), E8M0 scales [*, out, in / 32]."""

    codes: Tensor
    scale: Tensor


def decode_e8m0(scale: Tensor) -> Tensor:
    """Bytes -> fp32 powers of two, 2^(byte - 127); byte 255 (NaN) is refused at load time."""
    bits = scale.to(torch.int32) << 23
    smallest = torch.full_like(bits, 1 << 22)  # byte 0 is 2^-127, a subnormal
    return torch.where(bits == 0, smallest, bits).view(torch.float32)


def decode_e4m3(codes: Tensor) -> Tensor:
    """E4M3 bytes -> fp32."""
    return codes.view(torch.float8_e4m3fn).to(torch.float32)


def encode_e4m3(values: Tensor) -> Tensor:
    """fp32 -> E4M3 bytes, half to even, saturating at 448."""
    bounded = values.clamp(-_E4M3_MAX, _E4M3_MAX)
    return bounded.to(torch.float8_e4m3fn).view(torch.uint8)


def encode_e2m1(values: Tensor) -> Tensor:
    """fp32 -> E2M1 codes 0..15 [*, n] uint8, half to even, saturating at 6; bit 3 is the sign."""
    size = values.abs()
    code = (size > 0.25).to(torch.uint8)
    for bound, up in ((0.75, True), (1.25, False), (1.75, True), (2.5, False), (3.5, True)):
        code += (size >= bound) if up else (size > bound)
    code += size > 5.0
    return code | (torch.signbit(values).to(torch.uint8) << 3)


def pack_e2m1(codes: Tensor) -> Tensor:
    """Codes [*, n] -> bytes [*, n / 2], low nibble = even element."""
    return codes[..., 0::2] | (codes[..., 1::2] << 4)


def decode_e2m1(packed: Tensor) -> Tensor:
    """Bytes [*, n / 2] -> fp32 [*, n]; code 8 decodes to (minus) zero."""
    nibbles = torch.stack((packed & 15, packed >> 4), dim=-1).flatten(-2)
    return _e2m1_values(packed.device)[nibbles.to(torch.int64)]


def _e2m1_values(device: torch.device) -> Tensor:
    """fp32 [16], what each code means, computed on the device: an upload would hold the host up.

    0, 1/2, then 1 and 1 1/2 times 1, 2, 4; codes from 8 on are the negatives.
    """
    code = torch.arange(8, device=device)
    exponent, half = code >> 1, code & 1
    halves = torch.where(exponent > 0, (half + 2) << (exponent - 1).clamp(min=0), half)
    size = halves.to(torch.float32) * 0.5
    return torch.cat((size, -size))


def _power_of_two_scale(size: Tensor) -> Tensor:
    """Smallest power of two >= size (fp32 > 0), as an E8M0 byte: exponent, +1 with a mantissa."""
    bits = size.view(torch.int32)
    return ((bits >> 23) + ((bits & 0x7FFFFF) != 0)).to(torch.uint8)


def _grouped(values: Tensor, group: int) -> Tensor:
    return values.to(torch.float32).unflatten(-1, (-1, group))


def quantise_fp8(values: Tensor) -> Quantised:
    """FP8 of groups of 32 along the last axis: the input of every quantised product.

    scale = smallest power of two >= max(amax, 1e-4) / 448; codes = e4m3(x / scale).

    Args:
        values: [*, K] bf16 or fp32, K a multiple of 32.
    """
    groups = _grouped(values, FP8_GROUP)
    amax = groups.abs().amax(-1).clamp(min=_FP8_FLOOR)
    scale = _power_of_two_scale(amax / _E4M3_MAX)
    codes = encode_e4m3(groups / decode_e8m0(scale).unsqueeze(-1))
    return Quantised(codes.flatten(-2), scale)


def dequantise_fp8(pair: Quantised) -> Tensor:
    """fp32 values of an FP8 pair; exact."""
    groups = decode_e4m3(pair.codes).unflatten(-1, (-1, FP8_GROUP))
    return (groups * decode_e8m0(pair.scale).unsqueeze(-1)).flatten(-2)


def dequantise_fp8_weight(weight: Fp8Weight) -> Tensor:
    """fp32 [out, in] of a block-scaled weight; exact, also in bf16."""
    out, inner = weight.codes.shape
    scale = decode_e8m0(weight.scale)
    scale = scale.repeat_interleave(32, 0)[:out].repeat_interleave(32, 1)[:, :inner]
    return decode_e4m3(weight.codes) * scale


def dequantise_fp4_weight(weight: Fp4Weight) -> Tensor:
    """fp32 [*, out, in] of a packed weight; exact, also in bf16."""
    groups = decode_e2m1(weight.codes).unflatten(-1, (-1, 32))
    return (groups * decode_e8m0(weight.scale).unsqueeze(-1)).flatten(-2)


def encode_record(values: Tensor, record: Record) -> Tensor:
    """Store vectors as cache records.

    Args:
        values: [*, width], bf16 or fp32.
        record: format; its width must be the last size.

    Returns:
        [*, record.bytes] uint8: codes, then scales.
    """
    values = values.to(torch.float32)
    if record.format == "fp32":
        return values.contiguous().view(torch.uint8)
    if record.format == "fp8_ue8m0_32":
        return torch.cat(tuple(quantise_fp8(values)), dim=-1)
    if record.format == "fp4_ue8m0_32":
        groups = _grouped(values, 32)
        amax = groups.abs().amax(-1).clamp(min=_E2M1_MAX * 2.0**-126)
        scale = _power_of_two_scale(amax / _E2M1_MAX)
        divisor = decode_e8m0(scale)
    else:
        groups = _grouped(values, 16)
        amax = groups.abs().amax(-1).clamp(min=_E2M1_MAX * 2.0**-9)
        scale = encode_e4m3(amax / _E2M1_MAX)
        divisor = decode_e4m3(scale)
    codes = encode_e2m1(groups / divisor.unsqueeze(-1))
    return torch.cat((pack_e2m1(codes.flatten(-2)), scale), dim=-1)


def decode_record(data: Tensor, record: Record) -> Tensor:
    """Values of stored records: [*, record.bytes] uint8 -> [*, width] fp32, exact."""
    codes, scale = data[..., : record.code_bytes], data[..., record.code_bytes :]
    return decode_parts(codes, scale, record.format)


def decode_parts(codes: Tensor, scale: Tensor, form: RecordFormat) -> Tensor:
    """As `decode_record` with codes and scales apart (index keys are stored so)."""
    if form == "fp32":
        return codes.contiguous().view(torch.float32)
    if form == "fp8_ue8m0_32":
        return dequantise_fp8(Quantised(codes, scale))
    values = decode_e2m1(codes)
    if form == "fp4_ue8m0_32":
        groups, sizes = values.unflatten(-1, (-1, 32)), decode_e8m0(scale)
    else:
        groups, sizes = values.unflatten(-1, (-1, 16)), decode_e4m3(scale)
    return (groups * sizes.unsqueeze(-1)).flatten(-2)
