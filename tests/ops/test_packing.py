"""Kernel order of the weights, decoded again with the kernels' own bit operations."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
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


def changed(codes: Tensor, scale: Tensor) -> ExpertWeights:
    """Two experts with another second matrix."""
    return cases.expert_weights(2, 256, 128, CPU)._replace(w2=Fp4Weight(codes, scale))


def second_matrix() -> tuple[Tensor, Tensor]:
    weight = cases.expert_weights(2, 256, 128, CPU).w2
    assert isinstance(weight, Fp4Weight)
    return weight.codes.clone(), weight.scale.clone()


def test_groups_of_zeros_have_no_scale():
    codes, scale = second_matrix()
    scale[1, 7, 2] = 255
    codes[1, 7, 32:48] = 0x80  # zeros of both signs
    packed = pack(changed(codes, scale))
    scale[1, 7, 2] = 127
    wanted = exact(Fp4Weight(codes[1], scale[1]))
    torch.testing.assert_close(decoded(packed.w2, 1), wanted, rtol=0, atol=0)
    assert packed.rounded == (0, 2 * (256 * 8 + 256 * 4), 0.0)
    codes[1, 7] = 0
    assert (decoded(pack(changed(codes, scale)).w2, 1)[7] == 0).all()


@pytest.mark.parametrize(("byte", "says"), [(250, "250 is above 249"), (255, "255 is no number")])
def test_scales_that_no_kernel_can_hold_are_refused(byte, says):
    codes, scale = second_matrix()
    with pytest.raises(ValueError, match=says):
        pack(changed(codes, torch.full_like(scale, byte)))


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_weights_far_below_the_largest_of_their_row_are_rounded_within_a_bound(data):
    torch.manual_seed(data.draw(st.integers(0, 10**6)))
    widest = data.draw(st.integers(1, 40))
    codes, _ = second_matrix()
    codes &= data.draw(st.sampled_from([0xFF, 0x99, 0xBB, 0x88]))  # also small codes, and zeros
    codes[:, ::3] &= 0x8F  # every other weight zero
    scale = 60 + torch.randint(0, widest + 1, (2, 256, 4), dtype=torch.uint8)
    packed = pack(changed(codes, scale))
    groups, largest_error = 0, 0.0
    for expert in range(2):
        stored = exact(Fp4Weight(codes[expert], scale[expert]))
        found = decoded(packed.w2, expert)
        away, largest = (found - stored).abs(), stored.abs().amax(1, keepdim=True)
        assert (away <= 2.0**-12 * largest).all()
        size = stored.abs().unflatten(1, (4, 32)).amax(2) > 0
        byte = torch.where(size, scale[expert].int(), -1)
        near = (byte >= byte.amax(1, keepdim=True) - 11).repeat_interleave(32, 1)
        assert (away[near] == 0).all(), "groups near the largest scale keep their bits"
        kept = found.abs() <= stored.abs() + 2.0**-12 * largest
        assert bool(kept.all() and (found * stored >= 0).all())
        groups += int((away.unflatten(1, (4, 32)).amax(2) > 0).sum())
        largest_error = max(largest_error, float((away / largest.clamp(min=1e-300)).max()))
    assert packed.rounded.groups == groups
    assert packed.rounded.error == pytest.approx(largest_error, rel=1e-6)
    assert groups == 0 or widest > 11


def test_a_rounded_weight_is_the_nearest_one_of_the_base_scale():
    codes = torch.zeros((2, 256, 64), dtype=torch.uint8)
    codes[0, 0, 0] = 2  # 1.0, of the largest scale
    codes[0, 0, 16:24] = torch.tensor([0x10, 0x32, 0x54, 0x76, 0x98, 0xBA, 0xDC, 0xFE])
    scale = torch.full((2, 256, 4), 120, dtype=torch.uint8)
    sizes = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6], dtype=torch.float64)
    for below in range(1, 8):
        scale[0, 0, 1] = 120 - 11 - below
        packed = pack(changed(codes, scale))
        found = decoded(packed.w2, 0)[0, 32:48] / 2.0 ** (120 - 11 - 127)
        wanted = sizes * 2.0**-below
        distances = (wanted[:, None] - sizes).abs().amin(1)
        assert ((found[:8] - wanted).abs() == distances).all()
        assert (found[8:] == -found[:8]).all()
        assert packed.rounded.groups == int(bool((distances > 0).any()))


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
