"""Kernel order of the weights, decoded again with the kernels' own bit operations."""

import pytest
import torch
from torch import Tensor

from deepinfer.bench import cases
from deepinfer.ops.experts import ExpertWeights
from deepinfer.ops.experts.packing import PackedMatrix, pack
from deepinfer.ops.formats import (
    Fp4Weight,
    decode_e4m3,
    dequantise_fp4_weight,
    dequantise_fp8_weight,
)
from deepinfer.ops.grouped_output.packing import pack as pack_low

CPU = torch.device("cpu")


def halves(words: Tensor) -> Tensor:
    """int64 words -> values of their two bf16 halves [..., 2], low half first."""
    bits = torch.stack((words & 0xFFFF, (words >> 16) & 0xFFFF), dim=-1)
    return (bits << 16).to(torch.int32).view(torch.float32).double()


def decoded(packed: PackedMatrix, expert: int) -> Tensor:
    """One matrix from kernel order: [out, K] in the row order of the packed blocks."""
    words = packed.codes[expert].contiguous().view(torch.int32).to(torch.int64) & 0xFFFFFFFF
    at = torch.arange(4)
    sizes = words.unsqueeze(-1) & 0x77777777
    first, second = sizes >> (4 * at) & 7, sizes >> (4 * at + 16) & 7
    signs, more = (w.unsqueeze(-1) >> (8 * at + 7) & 1 for w in (words, words << 4))
    # block, step, chunk, thread = (warp, row, lane), word = (group, row bit), half, column
    size, sign = torch.stack((first, second), -2), torch.stack((signs, more), -2)
    order = (0, 3, 7, 4, 1, 2, 6, 8, 5, 9)
    size, sign = (
        x.unflatten(3, (4, 8, 4)).unflatten(6, (2, 2)).permute(order) for x in (size, sign)
    )
    blocks, steps = words.shape[:2]
    rows, columns = blocks * 64, steps * 128
    exponents = packed.exponents[expert].transpose(1, 2).reshape(rows, steps, 1)
    exponent = ((exponents >> torch.tensor([0, 8, 16, 24])) & 255).reshape(rows, -1)
    exponent = exponent.repeat_interleave(32, 1).to(torch.int64)
    small, large = exponent * 0x08080800 + 0x14100800, exponent * 0x08080808 + 0x24201C18
    number = size.reshape(rows, columns)
    table = torch.where(number < 4, small, large)
    code = table >> (8 * (number & 3)) & 255 | sign.reshape(rows, columns) << 7
    return decode_e4m3(code.to(torch.uint8)).double() * packed.base[expert].double()[:, None]


@pytest.mark.parametrize("low", [0, 100, 238])
def test_packed_experts_decode_to_the_stored_values(low):
    weights = cases.expert_weights(3, 256, 128, CPU, scales=(low, low + 11))
    packed = pack(weights)
    assert isinstance(weights.w13, Fp4Weight)
    assert isinstance(weights.w2, Fp4Weight)
    w13, w2 = exact(weights.w13), exact(weights.w2)
    for expert in range(3):
        gate, up = w13[expert].unflatten(0, (2, -1, 8))
        mixed = torch.stack((gate, up), dim=1).flatten(0, 2)  # slabs of 8 gate and 8 up rows
        torch.testing.assert_close(decoded(packed.w13, expert), mixed, rtol=0, atol=0)
        torch.testing.assert_close(decoded(packed.w2, expert), w2[expert], rtol=0, atol=0)


def exact(weight: Fp4Weight) -> Tensor:
    """Values in fp64: bytes near 0 and 254 are outside fp32."""
    plain = dequantise_fp4_weight(Fp4Weight(weight.codes, torch.full_like(weight.scale, 127)))
    size = torch.pow(2.0, weight.scale.double() - 127)
    return plain.double() * size.repeat_interleave(32, -1)


def test_only_scales_of_groups_that_are_not_zero_are_bound_to_a_range():
    weights = cases.expert_weights(2, 256, 128, CPU)
    assert isinstance(weights.w13, Fp4Weight)
    assert isinstance(weights.w2, Fp4Weight)
    codes, scale = weights.w2.codes.clone(), weights.w2.scale.clone()
    scale[1, 7, 2] = 200
    with pytest.raises(ValueError, match=r"row 7 differ by 2\^\d+, more than 2\^11; use reference"):
        pack(ExpertWeights(weights.w13, Fp4Weight(codes, scale)))
    codes[1, 7, 32:48] = 0x80  # zeros of both signs
    packed = pack(ExpertWeights(weights.w13, Fp4Weight(codes, scale)))
    wanted = exact(Fp4Weight(codes[1], scale[1]))
    torch.testing.assert_close(decoded(packed.w2, 1), wanted, rtol=0, atol=0)
    codes[1, 7] = 0
    assert (decoded(pack(ExpertWeights(weights.w13, Fp4Weight(codes, scale))).w2, 1)[7] == 0).all()
    with pytest.raises(ValueError, match="250 is above 249"):
        pack(ExpertWeights(weights.w13, Fp4Weight(codes, torch.full_like(scale, 250))))


def test_packed_low_rank_weights_decode_to_the_stored_values():
    weight = cases.fp8_weight(256, 384, CPU, scales=(40, 160))
    packed = pack_low(weight)
    words = packed.codes.view(torch.int32).to(torch.int64) & 0xFFFFFFFF
    first = (words & 0x80008000) | ((words >> 4) & 0x07F007F0)
    second = ((words << 8) & 0x80008000) | ((words << 4) & 0x07F007F0)
    values = torch.stack((halves(first), halves(second)), dim=-2)
    # block, step, chunk, thread = (warp, row, lane), word, row bit, parity
    rows = values.unflatten(3, (4, 8, 4)).permute(0, 3, 7, 4, 1, 2, 6, 5, 8)
    bytes_ = packed.scale.repeat_interleave(32, 0).unsqueeze(-1)
    scale = (bytes_ >> torch.tensor([0, 8, 16, 24])) & 255
    decoded = rows.reshape(256, 3, 4, 32) * torch.pow(2.0, scale.double() - 127 + 120).unsqueeze(-1)
    wanted = dequantise_fp8_weight(weight).double()
    torch.testing.assert_close(decoded.reshape(256, 384), wanted, rtol=0, atol=0)


def test_low_rank_weights_outside_the_kernels_range_are_refused():
    weight = cases.fp8_weight(128, 256, CPU)
    scale = weight.scale.clone()
    scale[1, 2] = 161
    with pytest.raises(ValueError, match="161"):
        pack_low(weight._replace(scale=scale))
    with pytest.raises(ValueError, match="multiple"):
        pack_low(cases.fp8_weight(64, 256, CPU))
