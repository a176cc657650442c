"""The FP8 linear kernel against the reference, and a row's bits against its company."""

import pytest
import torch
from torch import Tensor

from deepinfer.bench import cases
from deepinfer.ops.formats import Quantised, quantise_fp8
from deepinfer.ops.linear_fp8 import linear_fp8
from deepinfer.ops.linear_fp8.plan import Tile, choose, segments

pytest.importorskip("triton")
from deepinfer.ops.linear_fp8 import triton as kernel

pytestmark = pytest.mark.gpu
SHAPES = [(1792, 5120), (32768, 1280), (512, 5120), (5120, 8192), (4608, 5120), (5120, 2304)]
WHOLE = Tile(128, 64, 4, 4, None, True)
WIDE = Tile(128, 128, 4, 4, 168, True)
ACROSS = Tile(256, 64, 4, 4, 168, True, True)


def row_errors(found: Tensor, wanted: Tensor) -> Tensor:
    difference = (found.double() - wanted.double()).norm(dim=1)
    return difference / wanted.double().norm(dim=1).clamp(min=1e-30)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("tokens", [1, 7, 20, 33, 64, 257, 600])
def test_rows_agree_with_the_reference(gpu, shape, tokens):
    weight = cases.fp8_weight(shape[0], shape[1], gpu.device)
    x = cases.activations(tokens, shape[1], gpu.device)
    packed = kernel.pack(weight)
    torch.full((2**28,), 255, dtype=torch.uint8, device=gpu.device)  # poison of the outputs
    found = kernel.linear_fp8(x, packed)
    errors = row_errors(found, linear_fp8.reference(x, weight))
    assert bool((errors < 3e-3).all()), f"largest relative error of a row {errors.max().item():.2e}"


@pytest.mark.parametrize("size", [1e-30, 1e-6, 1e3, 1e9])
def test_zero_rows_and_any_size_of_input_and_scale(gpu, size):
    weight = cases.fp8_weight(640, 1280, gpu.device, scales=(70, 134))
    values = torch.randn((40, 1280), device=gpu.device) * size
    values[3] = 0
    values[7, :640] = 0
    values[9] *= 1e6
    x = quantise_fp8(values.to(torch.bfloat16))
    found = kernel.linear_fp8(x, kernel.pack(weight))
    wanted = linear_fp8.reference(x, weight)
    assert bool((found[3] == 0).all())
    assert bool((row_errors(found, wanted) < 3e-3).all())


@pytest.mark.parametrize("shape", SHAPES)
def test_a_row_alone_has_the_bits_of_the_row_in_any_batch(gpu, shape):
    packed = kernel.pack(cases.fp8_weight(shape[0], shape[1], gpu.device))
    x = cases.activations(700, shape[1], gpu.device)
    whole = kernel.linear_fp8(x, packed)
    for first, last in (
        (0, 1),
        (699, 700),
        (3, 19),
        (3, 25),
        (30, 94),
        (1, 200),
        (99, 600),
        (9, 642),
    ):
        part = Quantised(x.codes[first:last], x.scale[first:last])
        torch.testing.assert_close(
            kernel.linear_fp8(part, packed), whole[first:last], rtol=0, atol=0
        )


def test_repeated_calls_have_equal_bits(gpu):
    packed = kernel.pack(cases.fp8_weight(5120, 8192, gpu.device))
    x = cases.activations(64, 8192, gpu.device)
    first = kernel.linear_fp8(x, packed)
    for _ in range(50):
        torch.testing.assert_close(kernel.linear_fp8(x, packed), first, rtol=0, atol=0)


TILES = [
    Tile(64, 32, 4, 5),
    Tile(128, 16, 8, 3),
    Tile(128, 64, 4, 2),
    Tile(64, 64, 4, 4, None, True),
    Tile(128, 64, 4, 8, None, True),
    Tile(128, 64, 8, 8, None, True),
    Tile(256, 64, 8, 4, None, True),
    Tile(64, 64, 4, 3, 80, True, True),
    Tile(128, 64, 4, 3, 128, True, True),
    WIDE,
    ACROSS,
]


@pytest.mark.parametrize("count", [1, segments(5120, 2304), 5])  # 18 steps; 5 parts are uneven
@pytest.mark.parametrize("tile", TILES)
def test_tiles_change_no_bits(gpu, tile, count):
    packed = kernel.pack(cases.fp8_weight(5120, 2304, gpu.device))
    x = cases.activations(50, 2304, gpu.device)
    wanted = kernel.summed(kernel.launch(x, packed, Tile(64, 64, 4, 4), count))
    found = kernel.summed(kernel.launch(x, packed, tile, count))
    torch.testing.assert_close(found, wanted, rtol=0, atol=0)


@pytest.mark.parametrize("count", [1, 3, 5, 7])
def test_one_program_adds_segments_as_many_programs_do(gpu, count):
    packed = kernel.pack(cases.fp8_weight(768, 2304, gpu.device))
    x = cases.activations(3600, 2304, gpu.device)  # more tiles than programs
    whole = kernel.launch(x, packed, WIDE, count)
    torch.full((2**28,), 255, dtype=torch.uint8, device=gpu.device)  # poison of the outputs
    for tile in (WIDE, ACROSS):
        torch.testing.assert_close(kernel.launch(x, packed, tile, count), whole, rtol=0, atol=0)
    for first, last in ((100, 140), (3200, 3600)):
        some = Quantised(x.codes[first:last], x.scale[first:last])
        for tile in (Tile(64, 64, 4, 4), choose(last - first, 768, 2304), WHOLE):
            part = kernel.summed(kernel.launch(some, packed, tile, count))
            torch.testing.assert_close(part, whole[first:last], rtol=0, atol=0)
