"""Row-wise kernels and bf16 products against the references, and a row's bits in company."""

from typing import Any

import pytest
import torch
from torch import Tensor

from deepinfer.arch import Record
from deepinfer.bench import cases
from deepinfer.ops.attention_inputs import attention_inputs
from deepinfer.ops.formats import Quantised, decode_record, dequantise_fp8, quantise_fp8
from deepinfer.ops.grouped_output import OutputWeights, grouped_output
from deepinfer.ops.head import head
from deepinfer.ops.index_inputs import index_inputs
from deepinfer.ops.norm_quantise import norm_quantise
from deepinfer.ops.registry import Op
from deepinfer.ops.rotation import frequencies, rotation
from deepinfer.ops.route import route
from deepinfer.ops.shared_expert import SharedWeights, shared_expert

pytest.importorskip("triton")
from deepinfer.ops import triton_product, triton_rows

pytestmark = pytest.mark.gpu
HIDDEN, LIMIT = 5120, 10.0
TOKENS = [1, 7, 64, 130]


def kernel(op: Op, weights: Any) -> tuple[Any, Any]:
    """The Triton implementation and the weights that it packed."""
    found = next(i for i in op.implementations if i.name == "triton")
    return found.run, found.pack(weights)


def normal(gpu: Any, *shape: int, size: float = 1.0) -> Tensor:
    return (torch.randn(shape, device=gpu.device) * size).to(torch.bfloat16)


def poisoned() -> None:
    torch.full((2**28,), 255, dtype=torch.uint8, device="cuda")


def row_errors(found: Tensor, wanted: Tensor) -> Tensor:
    wide = wanted.double().flatten(1)
    return (found.double().flatten(1) - wide).norm(dim=1) / wide.norm(dim=1).clamp(min=1e-30)


@pytest.mark.parametrize("size", [1e-6, 1.0, 1e4])
@pytest.mark.parametrize("tokens", TOKENS)
def test_quantised_rows_are_the_references_bits(gpu, tokens, size):
    x = normal(gpu, tokens, 1280, size=size)
    x[0, :64] = 0
    poisoned()
    found, wanted = triton_rows.sum_quantise(x), quantise_fp8(x)
    assert torch.equal(found.codes, wanted.codes)
    assert torch.equal(found.scale, wanted.scale)


def test_segments_are_added_in_order_before_they_are_quantised(gpu):
    parts = torch.randn((5, 33, 1280), device=gpu.device)
    total = torch.zeros_like(parts[0])
    for part in parts:
        total += part
    found, wanted = triton_rows.sum_quantise(parts), quantise_fp8(total.to(torch.bfloat16))
    assert torch.equal(found.codes, wanted.codes)
    assert torch.equal(found.scale, wanted.scale)


@pytest.mark.parametrize("n", [512, 1280])
@pytest.mark.parametrize("tokens", TOKENS)
def test_norms_agree_with_the_reference(gpu, tokens, n):
    x, weight = normal(gpu, tokens, n), normal(gpu, n)
    x[0] = 0
    run, weight = kernel(norm_quantise, weight)
    poisoned()
    found = run(x, weight, eps=1e-6, quantise=True)
    wanted = norm_quantise.reference(x, weight, eps=1e-6, quantise=True)
    torch.testing.assert_close(found.hidden, wanted.hidden, rtol=2**-7, atol=0)
    assert found.hidden.ne(wanted.hidden).double().mean() < 1e-3
    assert bool((row_errors(dequantise_fp8(found.quantised), found.hidden)[1:] < 0.05).all())
    alone = run(x[-1:].contiguous(), weight, eps=1e-6, quantise=True)
    assert torch.equal(alone.hidden[0], found.hidden[-1])
    assert torch.equal(alone.quantised.codes[0], found.quantised.codes[-1])


@pytest.mark.parametrize("tokens", TOKENS)
def test_shared_expert_agrees_with_the_reference(gpu, tokens):
    inner = 768
    weights = SharedWeights(
        cases.fp8_weight(2 * inner, HIDDEN, gpu.device, scales=(112, 116)),
        cases.fp8_weight(HIDDEN, inner, gpu.device),
    )
    x = cases.activations(tokens, HIDDEN, gpu.device)
    run, packed = kernel(shared_expert, weights)
    poisoned()
    found = run(x, packed, limit=LIMIT)
    wanted = shared_expert.reference(x, weights, limit=LIMIT)
    errors = row_errors(found, wanted)
    assert bool((errors < 3e-2).all())  # a rounded middle, and its scale, may take another code
    assert errors.mean() < 5e-3
    alone = run(Quantised(x.codes[-1:], x.scale[-1:]), packed, limit=LIMIT)
    assert torch.equal(alone[0], found[-1])


@pytest.mark.parametrize("tokens", TOKENS)
def test_grouped_output_agrees_with_the_reference(gpu, tokens):
    weights = OutputWeights(
        cases.fp8_weight(4 * 256, 16 * 128 // 4, gpu.device),
        cases.fp8_weight(1280, 4 * 256, gpu.device),
    )
    o = normal(gpu, tokens, 16, 128)
    run, packed = kernel(grouped_output, weights)
    poisoned()
    found = run(o, packed, groups=4)
    wanted = grouped_output.reference(o, weights, groups=4)
    assert bool((row_errors(found, wanted) < 1e-2).all())  # a rounded middle may take another code
    assert torch.equal(run(o[-1:].contiguous(), packed, groups=4)[0], found[-1])


@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize("vocab", [1000, 32768])
def test_logits_agree_with_the_reference(gpu, tokens, vocab):
    hidden, weight = normal(gpu, tokens, HIDDEN), normal(gpu, vocab, HIDDEN, size=HIDDEN**-0.5)
    run, packed = kernel(head, weight)
    poisoned()
    found = run(hidden, packed)
    torch.testing.assert_close(found, head.reference(hidden, weight), rtol=1e-4, atol=2e-4)
    assert torch.equal(run(hidden[-1:].contiguous(), packed)[0], found[-1])


@pytest.mark.parametrize("out", [32, 512, 4096])
def test_token_tiles_of_products_change_no_bits(gpu, out):
    x, weight = normal(gpu, 300, HIDDEN), normal(gpu, out, HIDDEN, size=0.02)
    whole = triton_product.product(x, weight, torch.bfloat16)
    for first, last in ((0, 1), (299, 300), (3, 19), (40, 70), (0, 64), (1, 129)):
        part = triton_product.product(x[first:last].contiguous(), weight, torch.bfloat16)
        torch.testing.assert_close(part, whole[first:last], rtol=0, atol=0)


@pytest.mark.parametrize("own_bias", [False, True])
@pytest.mark.parametrize("experts", [6, 384])
@pytest.mark.parametrize("tokens", TOKENS)
def test_routing_agrees_with_the_reference(gpu, tokens, experts, own_bias):
    hidden = normal(gpu, tokens, HIDDEN)
    gate = normal(gpu, experts, HIDDEN, size=3 * HIDDEN**-0.5)
    gate[0] *= 20
    bias = torch.randn((tokens, experts) if own_bias else (experts,), device=gpu.device) * 0.1
    run, packed = kernel(route, gate)
    poisoned()
    found = run(hidden, packed, bias, topk=6, scaling=2.5)
    wanted = route.reference(hidden, gate, bias, topk=6, scaling=2.5)
    same = found.topk_idx == wanted.topk_idx
    assert same.double().mean() > 0.99  # scores that nearly tie may swap
    torch.testing.assert_close(
        found.topk_weights[same], wanted.topk_weights[same], rtol=1e-4, atol=1e-5
    )
    alone = run(
        hidden[-1:].contiguous(), packed, bias[-1:] if own_bias else bias, topk=6, scaling=2.5
    )
    assert torch.equal(alone.topk_idx[0], found.topk_idx[-1])
    assert torch.equal(alone.topk_weights[0], found.topk_weights[-1])


def test_equal_scores_go_to_the_lowest_expert(gpu):
    hidden = normal(gpu, 5, HIDDEN)
    gate = normal(gpu, 1, HIDDEN, size=0.02).repeat(384, 1)
    run, packed = kernel(route, gate)
    found = run(hidden, packed, torch.zeros(384, device=gpu.device), topk=6, scaling=2.5)
    assert found.topk_idx.tolist() == [[0, 1, 2, 3, 4, 5]] * 5


@pytest.mark.parametrize("tokens", TOKENS)
def test_attention_inputs_agree_with_the_reference(gpu, tokens):
    heads, width = 64, 512
    record = Record("fp8_ue8m0_32", width)
    q, kv, weight = normal(gpu, tokens, heads * width), normal(gpu, tokens, width), normal(gpu, 512)
    by = rotation(
        torch.arange(tokens, device=gpu.device) * 997, frequencies(64, 10000.0).to(gpu.device)
    )
    run, weight = kernel(attention_inputs, weight)
    poisoned()
    found = run(q, kv, weight, by, heads=heads, eps=1e-6, record=record)
    wanted = attention_inputs.reference(q, kv, weight, by, heads=heads, eps=1e-6, record=record)
    assert torch.equal(found.q, wanted.q)
    assert found.records.ne(wanted.records).double().mean() < 2e-3
    errors = row_errors(decode_record(found.records, record), decode_record(wanted.records, record))
    assert bool((errors < 1e-2).all())


@pytest.mark.parametrize("tokens", TOKENS)
def test_index_inputs_agree_with_the_reference(gpu, tokens):
    heads, width = 32, 128
    record = Record("fp4_ue8m0_32", width)
    q, hidden = normal(gpu, tokens, heads * width), normal(gpu, tokens, HIDDEN)
    q[0, :256] = 0
    by = rotation(
        torch.arange(tokens, device=gpu.device) * 997, frequencies(64, 10000.0).to(gpu.device)
    )
    run, weight = kernel(index_inputs, normal(gpu, heads, HIDDEN, size=HIDDEN**-0.5))
    poisoned()
    found = run(q, hidden, weight, by, scale=2**-6, record=record)
    wanted = index_inputs.reference(q, hidden, weight, by, scale=2**-6, record=record)
    assert torch.equal(found.records, wanted.records)
    torch.testing.assert_close(found.weights, wanted.weights, rtol=2**-7, atol=1e-5)
