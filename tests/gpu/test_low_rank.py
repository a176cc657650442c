"""The low-rank output kernel against plain products, and a row's bits against its company."""

import pytest
import torch
from torch import Tensor

from deepinfer.bench import cases
from deepinfer.ops.formats import Fp8Weight, dequantise_fp8_weight
from deepinfer.ops.grouped_output.packing import pack
from deepinfer.ops.grouped_output.plan import Tile, segments

pytest.importorskip("triton")
from deepinfer.ops.grouped_output import triton_low as kernel

pytestmark = pytest.mark.gpu
SHAPES = [(8, 1024, 4096), (4, 256, 512), (1, 384, 384)]  # groups, rows a group, columns a group


def whole(sums: Tensor) -> Tensor:
    """What the reader of the result makes of it: segments added first to last, rounded once."""
    if sums.dim() == 2:
        return sums
    total = torch.zeros_like(sums[0])
    for part in sums:
        total += part
    return total.to(torch.bfloat16)


def row_errors(found: Tensor, wanted: Tensor) -> Tensor:
    difference = (found.double() - wanted.double()).norm(dim=1)
    return difference / wanted.double().norm(dim=1).clamp(min=1e-30)


def expected(x: Tensor, weight: Fp8Weight, groups: int) -> Tensor:
    parts = dequantise_fp8_weight(weight).double().chunk(groups)
    columns = x.double().chunk(groups, 1)
    return torch.cat([c @ w.T for c, w in zip(columns, parts, strict=True)], 1)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("tokens", [1, 7, 64, 65, 257, 700])
def test_groups_multiply_their_own_columns(gpu, shape, tokens):
    groups, rank, columns = shape
    weight = cases.fp8_weight(groups * rank, columns, gpu.device)
    x = torch.randn((tokens, groups * columns), device=gpu.device).to(torch.bfloat16)
    torch.full((2**28,), 255, dtype=torch.uint8, device=gpu.device)  # poison of the outputs
    found = whole(kernel.low_rank(x, pack(weight), groups))
    errors = row_errors(found, expected(x, weight, groups))
    assert bool((errors < 3e-3).all()), f"largest relative error of a row {errors.max().item():.2e}"


@pytest.mark.parametrize("tokens", [40, 100])
@pytest.mark.parametrize("size", [1e-6, 1e3, 1e30])
def test_zero_rows_and_any_size_of_input_and_scale(gpu, size, tokens):
    weight = cases.fp8_weight(640, 1280, gpu.device, scales=(70, 140))
    x = (torch.randn((tokens, 1280), device=gpu.device) * size).to(torch.bfloat16)
    x[3] = 0
    x[7, :640] = 0
    found = whole(kernel.low_rank(x, pack(weight), 1))
    wanted = expected(x, weight, 1).to(torch.bfloat16)
    finite = torch.isfinite(wanted).all(1)
    assert bool((found[3] == 0).all())
    assert bool((row_errors(found, wanted)[finite] < 3e-3).all())


@pytest.mark.parametrize("shape", SHAPES)
def test_a_row_alone_has_the_bits_of_the_row_in_any_batch(gpu, shape):
    groups, rank, columns = shape
    packed = pack(cases.fp8_weight(groups * rank, columns, gpu.device))
    x = torch.randn((300, groups * columns), device=gpu.device).to(torch.bfloat16)
    together = whole(kernel.low_rank(x, packed, groups))
    for first, last in ((0, 1), (63, 64), (299, 300), (0, 16), (0, 64), (30, 94), (1, 200)):
        part = whole(kernel.low_rank(x[first:last].contiguous(), packed, groups))
        torch.testing.assert_close(part, together[first:last], rtol=0, atol=0)


TILES = [
    Tile(64, 64, 4, 4),
    Tile(128, 16, 8, 4),
    Tile(128, 128, 8, 3),
    Tile(64, 128, 4, 3),
    Tile(128, 128, 8, 4, more=32),
    Tile(128, 64, 8, 4, more=32),
    Tile(128, 128, 4, 4, copying=True),
    Tile(256, 128, 4, 3, copying=True),
]


@pytest.mark.parametrize("tile", TILES)
def test_tiles_change_no_bits(gpu, tile):
    packed = pack(cases.fp8_weight(8 * 512, 1024, gpu.device))
    count = segments(8 * 512, 1024)
    for tokens in (16, 50, 150, 333):
        x = torch.randn((tokens, 8 * 1024), device=gpu.device).to(torch.bfloat16)
        wanted = whole(kernel.launch(x, packed, 8, Tile(128, 64, 8, 4), count))
        found = whole(kernel.launch(x, packed, 8, tile, count))
        torch.testing.assert_close(found, wanted, rtol=0, atol=0)


def test_repeated_calls_have_equal_bits(gpu):
    packed = pack(cases.fp8_weight(8192, 4096, gpu.device))
    x = torch.randn((64, 8 * 4096), device=gpu.device).to(torch.bfloat16)
    first = whole(kernel.low_rank(x, packed, 8))
    for _ in range(50):
        torch.testing.assert_close(whole(kernel.low_rank(x, packed, 8)), first, rtol=0, atol=0)
