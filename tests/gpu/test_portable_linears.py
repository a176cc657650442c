"""The portable linear kernels against their references, and a row's bits against its company."""

from typing import Any

import pytest
import torch
from torch import Tensor

from deepinfer.bench import cases
from deepinfer.ops.formats import (
    Fp8Weight,
    Quantised,
    dequantise_fp8,
    dequantise_fp8_weight,
    quantise_fp8,
)
from deepinfer.ops.grouped_output import OutputWeights, grouped_output
from deepinfer.ops.linear_fp8 import linear_fp8
from deepinfer.ops.low_rank import LowRankWeights, low_rank
from deepinfer.ops.shared_expert import SharedWeights, shared_expert

pytest.importorskip("triton")
from deepinfer.ops import portable_product as product
from deepinfer.ops.grouped_output import portable as grouped
from deepinfer.ops.linear_fp8 import portable as linear
from deepinfer.ops.low_rank import portable as low
from deepinfer.ops.shared_expert import portable as shared

pytestmark = pytest.mark.gpu
# Rows a group, columns, groups: those of the release, then odd ones.
SHAPES = [
    (1792, 5120, 1),
    (32768, 1280, 1),
    (5120, 8192, 1),
    (4608, 5120, 1),
    (5120, 2304, 1),
    (1024, 4096, 8),
    (128, 128, 1),
    (96, 384, 1),
    (32, 1024, 4),
]
COUNTS = (1, 2, 16, 17, 33, 64, 65, 128, 256, 257, 600)


def row_errors(found: Tensor, wanted: Tensor) -> Tensor:
    difference = (found.double() - wanted.double()).norm(dim=1)
    return difference / wanted.double().norm(dim=1).clamp(min=1e-30)


def poison(device: torch.device) -> None:
    torch.full((2**28,), 255, dtype=torch.uint8, device=device)


def of_weight(shape: tuple[int, int, int], device: torch.device, **kwargs: Any) -> Fp8Weight:
    out, columns, groups = shape
    return cases.fp8_weight(groups * out, columns, device, **kwargs)


def expected(x: Tensor, weight: Fp8Weight, groups: int) -> Tensor:
    parts = dequantise_fp8_weight(weight).double().chunk(groups)
    columns = x.double().chunk(groups, 1)
    return torch.cat([c @ w.T for c, w in zip(columns, parts, strict=True)], 1)


@pytest.mark.parametrize("shape", SHAPES)
def test_rows_agree_with_exact_sums_in_any_company(gpu, shape):
    groups = shape[2]
    weight = of_weight(shape, gpu.device)
    packed = product.pack(weight)
    x = torch.randn((700, groups * shape[1]), device=gpu.device).to(torch.bfloat16)
    wanted = expected(x, weight, groups)
    poison(gpu.device)
    whole = product.summed(product.unsummed(x, packed, groups))
    errors = row_errors(whole, wanted)
    assert bool((errors < 3e-3).all()), f"largest relative error of a row {errors.max().item():.2e}"
    for count in COUNTS:
        for first in {0, 350, 700 - count}:
            poison(gpu.device)
            some = x[first : first + count].contiguous()
            part = product.summed(product.unsummed(some, packed, groups))
            assert torch.equal(part, whole[first : first + count]), (count, first)


TILES = [
    product.Tile(tokens, warps, stages, step, whole)
    for tokens, warps, stages, step in (
        (16, 4, 2, 128),
        (32, 8, 3, 64),
        (64, 8, 2, 128),
        (64, 4, 3, 128),
        (128, 8, 2, 128),
        (128, 4, 2, 64),
    )
    for whole in (False, True)
]


@pytest.mark.parametrize("shape", [(5120, 2304, 1), (4608, 5120, 1), (512, 1024, 4)])
def test_tiles_change_no_bits(gpu, shape):
    packed = product.pack(of_weight(shape, gpu.device))
    x = torch.randn((150, shape[2] * shape[1]), device=gpu.device).to(torch.bfloat16)
    wanted = product.summed(product.unsummed(x, packed, shape[2]))
    for tile in TILES:
        poison(gpu.device)
        found = product.summed(product.launch(x, packed, shape[2], tile))
        assert torch.equal(found, wanted), tile


def test_every_code_and_every_scale_of_weights_is_decoded_exactly(gpu):
    codes = torch.arange(128, dtype=torch.uint8, device=gpu.device)
    codes = torch.where(codes == 127, codes - 1, codes)
    codes = torch.stack((codes, codes | 128)).repeat(64, 1)
    eye = torch.eye(128, device=gpu.device).to(torch.bfloat16)
    for byte in range(10, 135):
        weight = Fp8Weight(codes, torch.full((4, 4), byte, dtype=torch.uint8, device=gpu.device))
        found = product.summed(product.unsummed(eye, product.pack(weight)))
        assert torch.equal(found.float(), dequantise_fp8_weight(weight).T), byte


def test_input_is_decoded_exactly_and_what_is_no_number_stays_none(gpu):
    codes = torch.arange(256, dtype=torch.uint8, device=gpu.device).repeat(40, 1)
    scale = torch.arange(100, 140, dtype=torch.uint8, device=gpu.device)[:, None].repeat(1, 8)
    pair = Quantised(codes, scale)
    found, wanted = product.decoded(pair).float(), dequantise_fp8(pair)
    assert int(wanted.isnan().sum()) == 80
    torch.testing.assert_close(found, wanted, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("size", [1e-30, 1e-6, 1e3, 1e9])
def test_zero_rows_and_any_size_of_input_and_scale(gpu, size):
    weight = cases.fp8_weight(640, 1280, gpu.device, scales=(70, 134))
    values = torch.randn((40, 1280), device=gpu.device) * size
    values[3] = 0
    values[7, :640] = 0
    values[9] *= 1e6
    x = quantise_fp8(values.to(torch.bfloat16))
    found = linear.linear_fp8(x, linear.pack(weight))
    assert bool((found[3] == 0).all())
    assert bool((row_errors(found, linear_fp8.reference(x, weight)) < 3e-3).all())


def numbers(result: Any) -> Tensor:
    """The first tensor of a result."""
    while not isinstance(result, Tensor):
        result = result[0]
    return result


def operations(device: torch.device) -> dict[str, tuple[Any, Any, Any, dict[str, Any], Tensor]]:
    """Reference, kernel's module, weights, other arguments, plain input."""
    fp8, tokens = cases.fp8_weight, 300
    hidden = torch.randn((tokens, 512), device=device).to(torch.bfloat16)
    heads = torch.randn((tokens, 8, 128), device=device).to(torch.bfloat16)
    gains = torch.rand(256, device=device).to(torch.bfloat16) + 0.5
    output = OutputWeights(fp8(4 * 64, 256, device), fp8(512, 256, device))
    return {
        "linear_fp8": (linear_fp8, linear, fp8(768, 512, device), {}, hidden),
        "low_rank": (
            low_rank,
            low,
            LowRankWeights(fp8(256, 512, device), fp8(96, 512, device), gains),
            {"eps": 1e-6, "quantise": True},
            hidden,
        ),
        "shared_expert": (
            shared_expert,
            shared,
            SharedWeights(fp8(2 * 384, 512, device), fp8(512, 384, device, (118, 120))),
            {"limit": 10.0},
            hidden,
        ),
        "grouped_output": (grouped_output, grouped, output, {"groups": 4}, heads),
    }


@pytest.mark.parametrize("name", ["linear_fp8", "low_rank", "shared_expert", "grouped_output"])
def test_whole_operations_agree_with_their_references_in_any_company(gpu, name):
    op, module, weights, given, plain = operations(gpu.device)[name]
    run, packed = getattr(module, name), module.pack(weights)

    def inputs(first: int, last: int) -> Any:
        some = plain[first:last].contiguous()
        return some if name == "grouped_output" else quantise_fp8(some)

    wanted = numbers(op.reference(inputs(0, 300), weights, **given))
    poison(gpu.device)
    whole = run(inputs(0, 300), packed, **given)
    # Codes of what lies between two products move by a step where sums differ in the last place.
    limit = 3e-3 if name in ("linear_fp8", "low_rank") else 2e-2
    assert bool((row_errors(numbers(whole), wanted) < limit).all())
    for count in COUNTS[:-2]:
        poison(gpu.device)
        part = run(inputs(20, 20 + count), packed, **given)
        assert torch.equal(numbers(part), numbers(whole)[20 : 20 + count]), count


def test_plain_input_is_quantised_first(gpu):
    weight = linear.pack(cases.fp8_weight(256, 512, gpu.device))
    x = torch.randn((20, 512), device=gpu.device).to(torch.bfloat16)
    assert torch.equal(linear.linear_fp8(x, weight), linear.linear_fp8(quantise_fp8(x), weight))


def test_repeated_calls_have_equal_bits(gpu):
    packed = product.pack(cases.fp8_weight(5120, 8192, gpu.device))
    x = torch.randn((64, 8192), device=gpu.device).to(torch.bfloat16)
    first = product.summed(product.unsummed(x, packed))
    for _ in range(50):
        assert torch.equal(product.summed(product.unsummed(x, packed)), first)
