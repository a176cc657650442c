"""The portable expert kernels against the reference, and a row's bits against its company."""

import math

import pytest
import torch
from torch import Tensor

from deepinfer.bench import cases
from deepinfer.ops.experts import ExpertWeights, experts
from deepinfer.ops.formats import Fp4Weight, Quantised, quantise_fp8

pytest.importorskip("triton")
from deepinfer.ops.experts import portable as kernels
from tests.gpu.test_experts import poisoned, row_errors

pytestmark = pytest.mark.gpu
HIDDEN, INNER = 1280, 768


def compare(
    x: Quantised, ids: Tensor, share: Tensor, weights: ExpertWeights, limit: float = 10.0
) -> Tensor:
    packed = kernels.pack(weights)
    poisoned()
    found = kernels.experts(x, ids, share, packed, limit=limit)
    wanted = experts.reference(x, ids, share, weights, limit=limit)
    errors = row_errors(found, wanted)
    # All operands are exact; where a sum's last bit moves a rounded middle to the next FP8 code,
    # that is up to an eighth of one element.
    assert errors.mean() < (5e-3 if len(errors) > 256 else 1e-2)
    assert (errors >= 3e-2).sum() <= max(2, len(errors) // 500)
    assert bool((errors < 0.1).all()), f"largest relative error of a row {errors.max().item():.2e}"
    return found


@pytest.mark.parametrize("tokens", [1, 7, 64, 257, 1500])
@pytest.mark.parametrize("count", [6, 48])
def test_rows_agree_with_the_reference(gpu, tokens, count):
    weights = cases.expert_weights(count, HIDDEN, INNER, gpu.device)
    x = cases.activations(tokens, HIDDEN, gpu.device)
    compare(x, *cases.routing(tokens, count, 6, gpu.device), weights)


def test_true_sizes_agree_with_the_reference(gpu):
    weights = cases.expert_weights(12, 5120, 2304, gpu.device)
    x = cases.activations(64, 5120, gpu.device)
    compare(x, *cases.routing(64, 12, 6, gpu.device), weights)


@pytest.mark.parametrize(("hidden", "inner"), [(128, 128), (256, 128), (128, 384)])
def test_narrow_models_are_served_too(gpu, hidden, inner):
    weights = cases.expert_weights(4, hidden, inner, gpu.device)
    x = cases.activations(50, hidden, gpu.device)
    compare(x, *cases.routing(50, 4, 2, gpu.device), weights)


def one_by_one(x: Quantised, weights: ExpertWeights, limit: float, expert: int) -> Tensor:
    """The reference's output of one expert for every token."""
    ids = torch.full((len(x.codes), 1), expert, device=x.codes.device)
    share = torch.ones(ids.shape, device=ids.device)
    return experts.reference(x, ids, share, weights, limit=limit)


def test_every_code_and_column_goes_where_it_belongs(gpu):
    """One code a row, one column of the input at a time: sums of a single exact product."""
    hidden = inner = 256
    weights = cases.expert_weights(2, hidden, inner, gpu.device)
    eye = torch.eye(hidden, device=gpu.device).to(torch.bfloat16)
    x = quantise_fp8(eye * 16)
    for expert in (0, 1):
        ids = torch.full((hidden, 1), expert, device=gpu.device)
        share = torch.ones((hidden, 1), device=gpu.device)
        found = kernels.experts(x, ids, share, kernels.pack(weights), limit=math.inf)
        wanted = one_by_one(x, weights, math.inf, expert)
        torch.testing.assert_close(found, wanted, rtol=2e-2, atol=1e-2 * float(wanted.std()))


@pytest.mark.parametrize("tokens", [5, 300])
def test_one_expert_takes_all_and_the_rest_none(gpu, tokens):
    weights = cases.expert_weights(8, HIDDEN, INNER, gpu.device)
    x = cases.activations(tokens, HIDDEN, gpu.device)
    ids = torch.full((tokens, 6), -1, device=gpu.device)
    ids[:, 3] = 5
    compare(x, ids, torch.rand((tokens, 6), device=gpu.device), weights)


def test_tokens_without_any_expert_give_zero(gpu):
    weights = cases.expert_weights(8, HIDDEN, INNER, gpu.device)
    x = cases.activations(33, HIDDEN, gpu.device)
    ids, share = cases.routing(33, 8, 6, gpu.device)
    ids[::2] = -1
    found = compare(x, ids, share, weights)
    assert bool((found[::2] == 0).all())
    assert bool((found[1::2] != 0).any(1).all())


@pytest.mark.parametrize("size", [1e-6, 1.0, 300.0])
@pytest.mark.parametrize("scales", [(34, 60), (118, 129), (150, 160)])
def test_zero_rows_and_any_size_of_input_and_of_weights(gpu, size, scales):
    w13 = cases.expert_weights(8, HIDDEN, INNER, gpu.device, scales=(118, 129)).w13
    weights = cases.expert_weights(8, HIDDEN, INNER, gpu.device, scales=scales)._replace(w13=w13)
    values = torch.randn((40, HIDDEN), device=gpu.device) * size
    values[3] = 0
    values[7, :640] = 0
    x = quantise_fp8(values.to(torch.bfloat16))
    found = compare(x, *cases.routing(40, 8, 6, gpu.device), weights)
    assert bool((found[3] == 0).all())


def test_groups_of_zeros_may_have_any_scale(gpu):
    weights = cases.expert_weights(4, HIDDEN, INNER, gpu.device)
    assert isinstance(weights.w2, Fp4Weight)
    codes = weights.w2.codes.clone().unflatten(2, (-1, 16))
    codes[:, 5, 3] = 0x80  # a zero and a negative zero
    scale = weights.w2.scale.clone()
    scale[:, 5, 3] = 0
    weights = weights._replace(w2=Fp4Weight(codes.flatten(2), scale))
    x = cases.activations(20, HIDDEN, gpu.device)
    compare(x, *cases.routing(20, 4, 2, gpu.device), weights)


@pytest.mark.parametrize("count", [6, 48])
def test_a_row_alone_has_the_bits_of_the_row_in_any_batch(gpu, count):
    weights = kernels.pack(cases.expert_weights(count, HIDDEN, INNER, gpu.device))
    tokens = 2048
    x = cases.activations(tokens, HIDDEN, gpu.device)
    ids, share = cases.routing(tokens, count, 6, gpu.device)

    def run(first: int, last: int) -> Tensor:
        part = Quantised(x.codes[first:last], x.scale[first:last])
        rows = slice(first, last)
        poisoned(2**24)
        return kernels.experts(part, ids[rows], share[rows].contiguous(), weights, limit=10.0)

    whole = run(0, tokens)
    for first, last in ((0, 1), (63, 64), (2047, 2048), (0, 20), (32, 96), (0, 257), (1, 1024)):
        torch.testing.assert_close(run(first, last), whole[first:last], rtol=0, atol=0)


@pytest.mark.parametrize("number", [1, 2])
def test_tiles_change_no_bits(gpu, number):
    weights = kernels.pack(cases.expert_weights(6, 5120, 2304, gpu.device))
    x = cases.activations(100, 5120, gpu.device)
    ids, share = cases.routing(100, 6, 6, gpu.device)
    narrow, tile = kernels.TILES[0], kernels.TILES[number]
    wanted = kernels.launch(x, ids, share, weights, 10.0, narrow)
    poisoned()
    found = kernels.launch(x, ids, share, weights, 10.0, tile)
    torch.testing.assert_close(found, wanted, rtol=0, atol=0)


@pytest.mark.parametrize("tile", kernels.TILES)
def test_a_hundred_repeats_over_poisoned_memory_have_the_same_bits(gpu, tile):
    """Of products that a program left to the matrix unit for too long some would be wrong."""
    weights = kernels.pack(cases.expert_weights(6, 5120, 2304, gpu.device))
    x = cases.activations(192, 5120, gpu.device)
    ids, share = cases.routing(192, 6, 6, gpu.device)
    first = kernels.launch(x, ids, share, weights, 10.0, tile)
    for _ in range(100):
        poisoned(2**26)
        assert torch.equal(kernels.launch(x, ids, share, weights, 10.0, tile), first)


def test_packing_keeps_the_codes(gpu):
    weights = cases.expert_weights(2, HIDDEN, INNER, gpu.device)
    packed = kernels.pack(weights)
    for stored, kept in zip(weights, packed, strict=True):
        assert isinstance(stored, Fp4Weight)
        assert isinstance(kept, Fp4Weight)
        assert kept.codes is stored.codes
        assert torch.equal(kept.scale, stored.scale)
