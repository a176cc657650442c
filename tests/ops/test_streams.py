"""Residual streams: coefficients, update and collapse."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from deepinfer.ops.cases import Maker
from deepinfer.ops.engram_gate import engram_gate
from deepinfer.ops.engram_gate.cases import case as gate_case
from deepinfer.ops.formats import dequantise_fp8
from deepinfer.ops.mhc_boundary import HyperWeights, mhc_boundary, split_coefficients
from deepinfer.ops.mhc_boundary.cases import case as boundary_case
from deepinfer.ops.mhc_collapse import mhc_collapse
from deepinfer.ops.mhc_update import Pending, mhc_update
from deepinfer.ops.norm_quantise import norm_quantise
from tests.ops.small import SMALL, TWO_STREAMS

TOKENS = [(p, 1) for p in range(20)]


@given(st.integers(1, 5), st.floats(0.1, 2), st.integers(1, 30))
def test_sinkhorn_ends_with_columns_of_sum_one(m, spread, iterations):
    count = (2 + m) * m
    weights = HyperWeights(torch.empty(0), torch.zeros(count), torch.ones(3), torch.empty(0))
    u = (spread * torch.randn(9, count)).clamp(-3 * spread, 3 * spread)
    split = split_coefficients(u, weights, iterations, 1e-6)
    # eps is in every denominator; a column of sum s ends at s / (s + eps), and s >= exp(-12) / m.
    ends = split.comb.sum(1)
    assert (ends < 1 + 1e-6).all()
    assert (ends > 1 - 1e-6 * (m * math.exp(12) + 1)).all()
    assert (split.comb > 0).all()
    assert ((split.pre > 0) & (split.pre <= 1 + 2e-6)).all()
    assert ((split.post >= 0) & (split.post <= 2)).all()


def test_sinkhorn_of_ordinary_numbers_is_doubly_stochastic():
    weights = HyperWeights(torch.empty(0), torch.zeros(24), torch.ones(3), torch.empty(0))
    comb = split_coefficients(torch.randn(200, 24).clamp(-2, 2), weights, 20, 1e-6).comb
    for axis in (1, 2):
        torch.testing.assert_close(comb.sum(axis), torch.ones(200, 4), rtol=0, atol=1e-4)


def test_sinkhorn_rows_approach_one_with_more_iterations():
    weights = HyperWeights(torch.empty(0), torch.zeros(24), torch.ones(3), torch.empty(0))
    u = torch.randn(50, 24)
    off = [
        (split_coefficients(u, weights, n, 1e-6).comb.sum(2) - 1).abs().max() for n in (1, 3, 20)
    ]
    assert off[0] > 10 * off[1] > 10 * off[2]
    assert off[2] < 1e-4


def test_coefficients_take_their_places_in_the_projection():
    """Numbers 0..m-1 are pre, m..2m-1 post, the rest comb with the source stream first."""
    weights = HyperWeights(torch.empty(0), torch.zeros(8), torch.ones(3), torch.empty(0))
    u = torch.tensor([[40.0, -40.0, -40.0, 40.0, 9.0, 0.0, 0.0, 9.0]])
    split = split_coefficients(u, weights, 20, 1e-6)
    assert split.pre.tolist() == [[pytest.approx(1 + 1e-6), pytest.approx(1e-6)]]
    assert split.post.tolist() == [[pytest.approx(0), 2.0]]
    assert split.comb[0].diagonal().min() > 0.999
    turned = split_coefficients(
        torch.tensor([[0.0] * 4 + [0.0, 9.0, 0.0, 0.0]]), weights, 1, 1e-6
    ).comb[0]
    assert turned[0, 1] > turned[0, 0]  # source 0 goes to stream 1


def test_update_sums_over_the_source_stream():
    streams = torch.tensor([[[1.0], [10.0]]])
    comb = torch.tensor([[[0.5, 2.0], [0.25, 4.0]]])  # comb[j, k]: source j to stream k
    pending = Pending(torch.tensor([[100.0]]), torch.tensor([[1.0, 3.0]]), comb)
    assert mhc_update.reference(streams, pending).tolist() == [[[103.0], [342.0]]]


def test_a_one_hot_collapse_is_the_stream_itself():
    streams = torch.randn(3, 4, 32).bfloat16()
    pre = torch.tensor([[0.0, 0.0, 1.0, 0.0]]).expand(3, 4)
    found = mhc_collapse.reference(streams, pre, torch.ones(32), 1e-20)
    assert (found.plain == streams[:, 2]).all()


@pytest.mark.parametrize("arch", [SMALL, TWO_STREAMS])
@pytest.mark.parametrize("quantised", [True, False])
def test_a_boundary_is_update_then_coefficients_then_collapse_with_the_old_pre(arch, quantised):
    make = Maker(arch, quantised=quantised)
    given_case = boundary_case(make, make.batch(TOKENS))
    found = mhc_boundary.reference(**given_case)
    streams = mhc_update.reference(given_case["streams"], given_case["pending"])
    assert (found.streams == streams).all()
    settled = mhc_boundary.reference(**dict(given_case, streams=streams, pending=None))
    for name in ("streams", "pre", "post", "comb", "hidden"):
        assert (getattr(settled, name) == getattr(found, name)).all()
    norm = given_case["weights"].norm
    collapsed = mhc_collapse.reference(streams, given_case["pre"], norm, arch.rms_norm_eps)
    assert (found.hidden == collapsed.normed).all()
    assert not torch.equal(found.pre, given_case["pre"])
    if quantised:
        step = found.hidden.float().abs().amax(1, keepdim=True) / 8
        assert ((dequantise_fp8(found.input) - found.hidden.float()).abs() <= step).all()
    else:
        assert found.input is found.hidden


def test_norms_hand_on_the_pair_of_the_rounded_rows():
    x = torch.randn(5, 64).bfloat16()
    found = norm_quantise.reference(x, torch.ones(64), eps=1e-6, quantise=True)
    assert found.input is found.quantised
    plain = norm_quantise.reference(x, torch.ones(64), eps=1e-6, quantise=False)
    assert plain.input is plain.hidden
    assert (plain.hidden == found.hidden).all()


def test_the_gate_is_closed_at_image_positions_only():
    make = Maker(SMALL)
    given_case = gate_case(make, make.batch(TOKENS))
    found = engram_gate.reference(**given_case)
    live = given_case["live"]
    assert 0 < live.sum() < len(live)
    assert (found.streams[~live] == given_case["streams"][~live]).all()
    assert (found.gate[~live] == 0).all()
    assert ((found.gate[live] > 0) & (found.gate[live] < 1)).all()


def test_the_gate_of_a_zero_dot_is_just_above_a_half():
    streams, kv = torch.zeros(1, 2, 32), torch.ones(1, 96)
    ones = torch.ones(2, 32)
    found = engram_gate.reference(streams, kv, ones, ones, torch.tensor([True]), eps=1e-20)
    assert found.gate[0, 0].item() == pytest.approx(1 / (1 + 2.718281828**-1e-3), abs=1e-7)


def test_the_gate_follows_the_signed_root_of_the_cosine():
    streams = torch.stack((torch.ones(32), -torch.ones(32)))[None]
    kv = torch.cat((torch.ones(64), torch.full((32,), 3.0)))[None]
    ones = torch.ones(2, 32)
    found = engram_gate.reference(streams, kv, ones, ones, torch.tensor([True]), eps=1e-20)
    root = 32**0.25  # dot of unit vectors times 32 channels over sqrt(32)
    expected = torch.sigmoid(torch.tensor([[root, -root]]))
    torch.testing.assert_close(found.gate, expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(found.streams, streams + 3 * expected[..., None])
