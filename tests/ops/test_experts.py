"""Routing, routed and shared experts, and the output projection."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from deepinfer.ops.cases import Maker
from deepinfer.ops.experts import ExpertWeights, experts
from deepinfer.ops.experts.cases import case as experts_case
from deepinfer.ops.experts.reference import swiglu_clamp
from deepinfer.ops.formats import (
    dequantise_fp4_weight,
    dequantise_fp8,
    dequantise_fp8_weight,
    quantise_fp8,
)
from deepinfer.ops.grouped_output import grouped_output
from deepinfer.ops.grouped_output.cases import case as output_case
from deepinfer.ops.products import linear, matmul
from deepinfer.ops.route import route
from deepinfer.ops.shared_expert import shared_expert
from deepinfer.ops.shared_expert.cases import case as shared_case
from tests.ops.small import SMALL

TOKENS = [(p, 1) for p in range(11)]


@given(st.lists(st.sampled_from([-2.0, 0.0, 0.5, 3.0]), min_size=2, max_size=6), st.data())
def test_ties_go_to_the_lowest_expert(logits, data):
    topk = data.draw(st.integers(1, len(logits)))
    found = route.reference(
        torch.ones(1, 1),
        torch.tensor(logits)[:, None],
        torch.zeros(len(logits)),
        topk=topk,
        scaling=1.5,
    )
    ranked = sorted(range(len(logits)), key=lambda i: (-logits[i], i))
    assert found.topk_idx.tolist() == [ranked[:topk]]
    scores = [math.sqrt(math.log1p(math.exp(logits[i]))) for i in ranked[:topk]]
    expected = [1.5 * score / sum(scores) for score in scores]
    assert found.topk_weights[0].tolist() == pytest.approx(expected, rel=1e-6)


def test_many_equal_experts_leave_the_lowest_ids():
    found = route.reference(
        torch.ones(3, 1), torch.zeros(384, 1), torch.zeros(384), topk=6, scaling=1
    )
    assert found.topk_idx.tolist() == [[0, 1, 2, 3, 4, 5]] * 3


def test_the_bias_chooses_but_does_not_weigh():
    hidden, gate = torch.randn(8, 32), torch.randn(6, 32)
    bias = torch.tensor([0.0, 9.0, 0.0, 0.0, 9.0, 0.0])
    found = route.reference(hidden, gate, bias, topk=2, scaling=1.0)
    assert found.topk_idx.sort(1).values.tolist() == [[1, 4]] * 8
    scores = torch.nn.functional.softplus(hidden @ gate.T).sqrt().gather(1, found.topk_idx)
    torch.testing.assert_close(found.topk_weights, scores / scores.sum(1, keepdim=True))


def test_each_token_may_have_a_bias_of_its_own():
    bias = torch.zeros(2, 4)
    bias[1, 3] = 5
    found = route.reference(
        torch.ones(2, 1), torch.tensor([[4.0], [3.0], [2.0], [1.0]]), bias, topk=1, scaling=1.0
    )
    assert found.topk_idx.tolist() == [[0], [3]]


def test_clamps_bound_the_gate_above_and_the_up_part_on_both_sides():
    rows = torch.tensor([[20.0, -30.0], [-20.0, 30.0], [1.0, 0.5]])
    silu = lambda g: g / (1 + math.exp(-g))  # noqa: E731
    expected = torch.tensor([[silu(10) * -10], [silu(-20) * 10], [silu(1) * 0.5]])
    torch.testing.assert_close(swiglu_clamp(rows, 10.0), expected)


def feed_forward(x, w13, w2, limit, share=1.0):
    gate, up = (x @ w13.T).chunk(2, -1)
    inner = torch.nn.functional.silu(gate.clamp(max=limit)) * up.clamp(-limit, limit)
    return (inner * share) @ w2.T


def test_routed_experts_are_a_weighted_sum():
    make = Maker(SMALL, quantised=False)
    given_case = experts_case(make, make.batch(TOKENS))
    given_case["topk_idx"][3, 1] = -1
    found = experts.reference(**given_case)
    weights = given_case["weights"]
    for token, x in enumerate(given_case["x"]):
        expected = torch.zeros(SMALL.hidden_size)
        for expert, share in zip(
            given_case["topk_idx"][token].tolist(), given_case["topk_weights"][token], strict=True
        ):
            if expert >= 0:
                expected += feed_forward(
                    x, weights.w13[expert], weights.w2[expert], given_case["limit"], share
                )
        torch.testing.assert_close(found[token], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("quantised", [True, False])
def test_the_order_of_a_tokens_experts_does_not_matter(quantised):
    make = Maker(SMALL, quantised=quantised)
    given_case = experts_case(make, make.batch(TOKENS))
    turned = dict(
        given_case,
        topk_idx=given_case["topk_idx"].flip(1),
        topk_weights=given_case["topk_weights"].flip(1),
    )
    assert (experts.reference(**turned) == experts.reference(**given_case)).all()


def test_without_experts_the_sum_is_zero():
    make = Maker(SMALL)
    given_case = experts_case(make, make.batch(TOKENS))
    none = torch.full_like(given_case["topk_idx"], -1)
    assert (experts.reference(**dict(given_case, topk_idx=none)) == 0).all()


def test_quantised_experts_stay_near_the_decoded_ones():
    make = Maker(SMALL)
    given_case = experts_case(make, make.batch(TOKENS))
    plain = dict(
        given_case,
        x=dequantise_fp8(given_case["x"]),
        weights=ExpertWeights(*(dequantise_fp4_weight(w) for w in given_case["weights"])),
    )
    found, exact = experts.reference(**given_case), experts.reference(**plain)
    assert found.dtype == torch.float32
    error = (found - exact).square().mean().sqrt() / exact.std()
    assert 0 < error < 0.05


def test_the_shared_expert_is_an_unweighted_expert():
    make = Maker(SMALL, quantised=False)
    given_case = shared_case(make, make.batch(TOKENS))
    weights = given_case["weights"]
    expected = feed_forward(given_case["x"], weights.w13, weights.w2, given_case["limit"])
    torch.testing.assert_close(
        shared_expert.reference(**given_case), expected, rtol=1e-4, atol=1e-5
    )


def test_output_groups_see_their_own_heads_only():
    make = Maker(SMALL, quantised=False)
    given_case = output_case(make, make.batch(TOKENS))
    o, weights, groups = (given_case[n] for n in ("o", "weights", "groups"))
    grouped = o.flatten(1).unflatten(1, (groups, -1))
    low = torch.einsum("tgc,grc->tgr", grouped, weights.wo_a.unflatten(0, (groups, -1)))
    expected = low.flatten(1) @ weights.wo_b.T
    torch.testing.assert_close(
        grouped_output.reference(**given_case), expected, rtol=1e-4, atol=1e-5
    )


def test_the_low_rank_output_is_rounded_before_it_is_quantised():
    make = Maker(SMALL)
    given_case = output_case(make, make.batch(TOKENS))
    o, weights, groups = (given_case[n] for n in ("o", "weights", "groups"))
    wo_a = dequantise_fp8_weight(weights.wo_a).chunk(groups)
    parts = o.flatten(1).chunk(groups, dim=1)
    low = torch.cat([matmul(part, w) for part, w in zip(parts, wo_a, strict=True)], dim=1)
    found = grouped_output.reference(**given_case)
    assert (found == linear(quantise_fp8(low.bfloat16()), weights.wo_b)).all()
    assert not (found == linear(quantise_fp8(low), weights.wo_b)).all()
