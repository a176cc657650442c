"""The narrow projections in one product: bits of the separate kernels, near the reference."""

import pytest
import torch

from deepinfer.bench import cases
from deepinfer.ops.formats import Quantised, dequantise_fp8
from deepinfer.ops.low_rank import LowRank, LowRankWeights, low_rank

pytest.importorskip("triton")
from deepinfer.ops import triton_rows
from deepinfer.ops.linear_fp8 import triton as linear
from deepinfer.ops.low_rank import triton as kernel

pytestmark = pytest.mark.gpu
HIDDEN, RANK, KEY = 5120, 1280, 512
TOKENS = [1, 8, 40, 64, 100, 300, 600]


def pair_of(found: LowRank) -> Quantised:
    pair = found.query.quantised
    assert pair is not None
    return pair


@pytest.fixture(scope="module")
def weights(gpu):
    return LowRankWeights(
        cases.fp8_weight(RANK, HIDDEN, gpu.device),
        cases.fp8_weight(KEY, HIDDEN, gpu.device),
        torch.randn(RANK, device=gpu.device).to(torch.bfloat16),
    )


@pytest.mark.parametrize("tokens", TOKENS)
def test_both_have_the_bits_of_products_and_norm_one_by_one(gpu, weights, tokens):
    x = cases.activations(tokens, HIDDEN, gpu.device)
    torch.full((2**28,), 255, dtype=torch.uint8, device=gpu.device)  # poison of the outputs
    found = kernel.low_rank(x, kernel.pack(weights), eps=1e-6, quantise=True)
    first, second = linear.pack(weights.wq_a), linear.pack(weights.wkv)
    hidden, pair = triton_rows.norm_quantise(
        linear.linear_fp8(x, first), weights.q_norm, 1e-6, quantise=True
    )
    assert torch.equal(found.kv, linear.linear_fp8(x, second))
    assert torch.equal(found.query.hidden, hidden)
    assert pair is not None
    assert torch.equal(pair_of(found).codes, pair.codes)
    assert torch.equal(pair_of(found).scale, pair.scale)


@pytest.mark.parametrize("tokens", TOKENS)
def test_rows_agree_with_the_reference(gpu, weights, tokens):
    x = cases.activations(tokens, HIDDEN, gpu.device)
    found = kernel.low_rank(x, kernel.pack(weights), eps=1e-6, quantise=True)
    wanted = low_rank.reference(x, weights, eps=1e-6, quantise=True)
    for one, other, bound in (
        (found.kv, wanted.kv, 5e-3),
        (found.query.hidden, wanted.query.hidden, 5e-3),
        # A last bit of the norm that falls the other way moves some codes by a whole step.
        (dequantise_fp8(pair_of(found)), dequantise_fp8(pair_of(wanted)), 3e-2),
    ):
        error = (one.double() - other.double()).norm(dim=1) / other.double().norm(dim=1)
        assert bool((error < bound).all()), f"largest error of a row {error.max().item():.2e}"


def test_a_row_alone_has_the_bits_of_the_row_in_any_batch(gpu, weights):
    packed = kernel.pack(weights)
    x = cases.activations(400, HIDDEN, gpu.device)
    whole = kernel.low_rank(x, packed, eps=1e-6, quantise=True)
    for first, last in ((0, 1), (399, 400), (30, 94), (1, 200), (0, 256)):
        some = Quantised(x.codes[first:last], x.scale[first:last])
        part = kernel.low_rank(some, packed, eps=1e-6, quantise=True)
        assert torch.equal(part.kv, whole.kv[first:last])
        assert torch.equal(part.query.hidden, whole.query.hidden[first:last])
        assert torch.equal(pair_of(part).codes, pair_of(whole).codes[first:last])


def test_plain_input_and_plain_weights_are_refused_with_the_remedy(gpu, weights):
    packed = kernel.pack(weights)
    x = torch.zeros((2, HIDDEN), dtype=torch.bfloat16, device=gpu.device)
    with pytest.raises(ValueError, match="use reference"):
        kernel.low_rank(x, packed, eps=1e-6, quantise=True)
    plain = weights._replace(wkv=torch.zeros((KEY, HIDDEN), device=gpu.device))
    with pytest.raises(ValueError, match="use reference"):
        kernel.pack(plain)
