"""What the CPU implementations share: exact decoding by table, and products of decoded weights.

Every value that a quantised weight can hold fits bf16, so decoded weights are kept in bf16 (2
bytes a number) and widened to float64 only while they are multiplied. Sums therefore run
in float64 as in the references, and the order in which a library adds is rounded away: no fixed
row tile is needed for a row to keep its bits. Knows no operation.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor

from deepinfer.arch import Record
from deepinfer.ops.formats import (
    FP8_GROUP,
    Fp4Weight,
    Fp8Weight,
    Quantised,
    decode_e2m1,
    decode_e4m3,
    decode_e8m0,
    dequantise_fp4_weight,
    dequantise_fp8_weight,
)
from deepinfer.ops.products import WIDE

_WIDE_ELEMENTS = 1 << 19  # of a weight, widened at a time: 4 MiB, and a bound on memory
_FP8_FLOOR = 1e-4  # as in `formats.quantise_fp8`, which defines the bits
_E4M3_MAX = 448.0
_MANTISSA = 0x7FFFFF


def serves(*, arch: str, quantised: bool, **_facts: object) -> str | None:
    """Refuse all but the release's numerics on a CPU."""
    if arch != "cpu":
        return f"runs on the CPU, not on {arch}"
    return None if quantised else "serves quantised numerics only"


def hold(weight: Tensor) -> Tensor:
    """A decoded fp32 weight in bf16 if that loses nothing, else as it is.

    Only block scales at the ends of the E8M0 range leave values that bf16 cannot hold.
    """
    narrow = weight.to(torch.bfloat16)
    return narrow if torch.equal(narrow.to(torch.float32), weight) else weight


def hold_fp8(weight: Fp8Weight | Tensor) -> Tensor:
    """Decode an FP8 weight [out, in] once, at load; a plain one stays."""
    return hold(dequantise_fp8_weight(weight)) if isinstance(weight, Fp8Weight) else weight


def hold_fp4(weight: Fp4Weight | Tensor) -> Tensor:
    """Decode stacked FP4 weights [experts, out, in] once, one expert at a time."""
    if not isinstance(weight, Fp4Weight):
        return weight
    pairs = zip(weight.codes, weight.scale, strict=True)
    return torch.stack([hold(dequantise_fp4_weight(Fp4Weight(c, s))) for c, s in pairs])


def product(x: Tensor, weight: Tensor) -> Tensor:
    """x [rows, K] float64 times weight [out, K] transposed, rounded once: fp32 [rows, out]."""
    step = max(1, _WIDE_ELEMENTS // weight.shape[1])
    if len(weight) <= step:
        return (x @ weight.to(WIDE).mT).to(torch.float32)
    return torch.cat([(x @ w.to(WIDE).mT).to(torch.float32) for w in weight.split(step)], dim=-1)


def quantise(values: Tensor) -> Quantised:
    """The bits of `formats.quantise_fp8` for finite values, in fewer passes.

    Args:
        values: [*, K] bf16 or fp32, K a multiple of 32.
    """
    groups = values.to(torch.float32).unflatten(-1, (-1, FP8_GROUP))
    size = groups.abs().amax(-1).clamp_(min=_FP8_FLOOR).div_(_E4M3_MAX)
    # Round the exponent up: adding a full mantissa carries into it unless the mantissa is zero.
    exponent = size.view(torch.int32).add_(_MANTISSA).bitwise_right_shift_(23)
    shrink = (254 - exponent).bitwise_left_shift_(23).view(torch.float32)
    codes = (groups * shrink.unsqueeze(-1)).clamp_(-_E4M3_MAX, _E4M3_MAX)
    codes = codes.to(torch.float8_e4m3fn).view(torch.uint8)
    return Quantised(codes.flatten(-2), exponent.to(torch.uint8))


def wide_input(x: Tensor | Quantised) -> Tensor:
    """The decoded input of a quantised product in float64; a plain `x` is quantised first."""
    pair = x if isinstance(x, Quantised) else quantise(x)
    return decode(pair.codes, pair.scale, "fp8_ue8m0_32").to(WIDE)


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


def decode(codes: Tensor, scale: Tensor, form: str) -> Tensor:
    """Exact values of codes and scales, fp32: the bits of `formats.decode_parts`.

    Args:
        codes: [*, bytes] uint8, an even number of bytes.
        scale: [*, groups] uint8.
        form: a quantised `RecordFormat`.
    """
    index = codes.contiguous().view(torch.uint16).to(torch.int32)
    values = _byte_pairs(form).index_select(0, index.flatten()).view(torch.bfloat16)
    sizes = _sizes(form).index_select(0, scale.flatten().to(torch.int32))
    values = values.view(len(sizes), -1).to(torch.float32).mul_(sizes.unsqueeze(1))
    return values.view(*codes.shape[:-1], -1)


def decode_records(data: Tensor, record: Record) -> Tensor:
    """Values of quantised records: [*, record.bytes] uint8 -> [*, width] fp32, exact."""
    split = record.code_bytes
    return decode(data[..., :split], data[..., split:], record.format)


def gather(view: Tensor, outer: Tensor, inner: Tensor) -> Tensor:
    """view[outer, inner] of a byte view [a, b, bytes], moved in the widest words that fit."""
    sizes = (view.shape[-1], view.storage_offset(), *view.stride()[:-1])
    for word, width in ((torch.int64, 8), (torch.int32, 4)):
        if all(size % width == 0 for size in sizes):
            return view.view(word)[outer, inner].view(torch.uint8)
    return view[outer, inner]


def runs(slices: Sequence[tuple[int, int]], least: int) -> list[tuple[int, int, bool]]:
    """Token ranges (first, after last, is one long slice), neighbouring short slices joined.

    A slice is long from `least` tokens on; which way a token goes must not change its bits.
    """
    found: list[tuple[int, int, bool]] = []
    for first, last in slices:
        long = last - first >= least
        if found and not long and not found[-1][2]:
            found[-1] = (found[-1][0], last, False)
        else:
            found.append((first, last, long))
    return found
