"""Kernel order of the weights, decoded again with the kernels' own bit operations."""

import pytest
import torch
from torch import Tensor

from deepinfer.bench import cases
from deepinfer.ops.experts.packing import pack
from deepinfer.ops.formats import Fp4Weight, dequantise_fp4_weight, dequantise_fp8_weight
from deepinfer.ops.grouped_output.packing import pack as pack_low

CPU = torch.device("cpu")


def halves(words: Tensor) -> Tensor:
    """int64 words -> values of their two bf16 halves [..., 2], low half first."""
    bits = torch.stack((words & 0xFFFF, (words >> 16) & 0xFFFF), dim=-1)
    return (bits << 16).to(torch.int32).view(torch.float32).double()


def decoded(packed: Fp4Weight, expert: int) -> Tensor:
    """One matrix from kernel order: [out, K] in the row order of the packed blocks."""
    words = packed.codes[expert].contiguous().view(torch.int32).to(torch.int64) & 0xFFFFFFFF
    mask = 0x81C081C0
    second = (words << 1) & 0x80008000 | (words << 3) & 0x01C001C0
    fourth = (words << 2) & 0x80008000 | (words >> 4) & 0x01C001C0
    parts = (words & mask, second, (words << 6) & mask, fourth)
    values = torch.stack([halves(part) for part in parts], dim=-2).unflatten(-2, (2, 2))
    # block, step, chunk, thread = (warp, row, lane), word, half of K, row bit, parity
    blocks, steps = values.shape[:2]
    values = values.unflatten(3, (4, 8, 4))
    rows = values.permute(0, 3, 8, 4, 1, 2, 7, 6, 5, 9).reshape(blocks * 64, steps, 2, 2, 32)
    bytes_ = packed.scale[expert].transpose(1, 2).reshape(blocks * 64, steps, 1)
    scale = ((bytes_ >> torch.tensor([0, 8, 16, 24])) & 255).view(blocks * 64, steps, 2, 2, 1)
    return (rows * torch.pow(2.0, scale.double() - 127 + 126)).reshape(blocks * 64, -1)


def test_packed_experts_decode_to_the_stored_values():
    weights = cases.expert_weights(3, 256, 128, CPU, scales=(100, 140))
    packed = pack(weights)
    assert isinstance(weights.w13, Fp4Weight)
    assert isinstance(weights.w2, Fp4Weight)
    w13, w2 = dequantise_fp4_weight(weights.w13), dequantise_fp4_weight(weights.w2)
    for expert in range(3):
        gate, up = w13[expert].unflatten(0, (2, -1, 8))
        mixed = torch.stack((gate, up), dim=1).flatten(0, 2)  # slabs of 8 gate and 8 up rows
        torch.testing.assert_close(decoded(packed.w13, expert), mixed.double(), rtol=0, atol=0)
        found = decoded(packed.w2, expert)
        torch.testing.assert_close(found, w2[expert].double(), rtol=0, atol=0)


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
