"""The law of draws, drafts, and the elementary functions behind both."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from deepinfer.ops.noise import NoiseKey, Purpose
from deepinfer.ops.sample import SamplerTable, candidates, draw_drafts, sample
from deepinfer.ops.sample.cases import SAMPLINGS, admitted
from deepinfer.ops.sample.elementary import exp, log, probabilities
from deepinfer.step import RowSampling
from tests.ops.small import same

INF = math.inf

# --- the law of the draws ------------------------------------------------------------------------

DRAWS = 30_000
MODES = {
    "plain": RowSampling(),
    "cold": RowSampling(temperature=0.6),
    "hot": RowSampling(temperature=1.7),
    "top_k": RowSampling(top_k=4),
    "top_p": RowSampling(top_p=0.85),
    "min_p": RowSampling(min_p=0.08),
    "all": RowSampling(temperature=0.9, top_k=6, top_p=0.9, min_p=0.02),
}


def chi_square(counts, law):
    """Pearson's statistic, and a bound that a right sampler passes with probability 1 - 1e-6."""
    there = law > 0
    assert counts[~there].sum() == 0
    expected = law[there] * counts.sum()
    free = int(there.sum()) - 1
    # Wilson and Hilferty: the cube root of chi^2 / n is nearly normal.
    spread = 2 / (9 * free)
    return ((counts[there] - expected) ** 2 / expected).sum(), free * (
        1 - spread + 4.75 * spread**0.5
    ) ** 3


def draws(sampling):
    """Tokens drawn at many positions of one row with equal logits, and the laws."""
    table = SamplerTable(2)
    table.admit(admitted(1, 1, sampling))
    logits = torch.tensor([0.3, -1.2, 2.0, 1.1, 0.0, -0.4, 1.9, -2.5]).expand(DRAWS, 8)
    rows, positions = torch.ones(DRAWS).long(), torch.arange(1, DRAWS + 1)
    tokens = torch.zeros(2, DRAWS, dtype=torch.int64)
    return sample.reference(logits, table.state, rows, positions, tokens, None, True)


@pytest.mark.parametrize("mode", MODES)
def test_draws_follow_their_law(mode):
    found = draws(MODES[mode])
    law = torch.softmax(found.law[0].double(), 0).numpy()
    counts = np.bincount(found.tokens, minlength=8)
    statistic, most = chi_square(counts, law)
    assert statistic < most


def test_draws_of_another_law_would_be_noticed():
    counts = np.bincount(draws(MODES["plain"]).tokens, minlength=8)
    law = torch.softmax(draws(MODES["hot"]).law[0].double(), 0).numpy()
    statistic, most = chi_square(counts, law)
    assert statistic > most


def test_draws_at_neighbouring_positions_and_of_sample_indexes_are_independent():
    table = SamplerTable(3)
    for row in (1, 2):
        table.admit(admitted(row, 1, RowSampling())._replace(seed=5, sample=row))
    logits, tokens = torch.zeros(DRAWS, 4), torch.zeros(3, DRAWS, dtype=torch.int64)
    rows, positions = torch.ones(DRAWS).long(), torch.arange(1, DRAWS + 1)
    first = sample.reference(logits, table.state, rows, positions, tokens).tokens
    second = sample.reference(logits, table.state, rows * 2, positions, tokens).tokens
    for pairs in (4 * first + second, 4 * first[:-1] + first[1:]):
        statistic, most = chi_square(np.bincount(pairs, minlength=16), np.full(16, 1 / 16))
        assert statistic < most


# --- drafts and elementary functions -------------------------------------------------------------


def drawn(logits, state, rows, positions, purpose):
    among = candidates(logits, state, rows, positions, purpose)
    return draw_drafts(logits, state, rows, among, keep_law=True)


def test_coupled_drafts_of_the_targets_own_logits_are_always_right():
    table = SamplerTable(3)
    table.admit(admitted(1, 1, RowSampling(temperature=0.8)))
    table.admit(admitted(2, 1, RowSampling(temperature=0.0)))
    rows, positions = torch.tensor([1, 2]).repeat(50), torch.arange(1, 101)
    logits, tokens = torch.randn(100, 30), torch.zeros(3, 100, dtype=torch.int64)
    target = sample.reference(logits, table.state, rows, positions, tokens, None, True)
    drafts = drawn(logits, table.state, rows, positions, Purpose.TARGET)
    assert same(tuple(drafts), (target.tokens, target.law))
    other = drawn(logits, table.state, rows, positions, Purpose.DRAFT).tokens
    assert (other[rows == 2] == target.tokens[rows == 2]).all()
    assert (other[rows == 1] == target.tokens[rows == 1]).float().mean() < 0.5


def test_a_drafter_that_is_not_finite_still_gives_valid_ids():
    table = SamplerTable(2)
    table.admit(admitted(1, 1, RowSampling()))
    logits = torch.tensor([[0.0, math.nan, 1.0], [INF, 0.0, 0.0]])
    drafts = drawn(logits, table.state, torch.tensor([1, 1]), torch.tensor([1, 2]), Purpose.DRAFT)
    assert drafts.law is not None
    assert drafts.law.tolist() == [[0.0] * 3] * 2
    assert ((drafts.tokens >= 0) & (drafts.tokens < 3)).all()


def test_exp_and_log_are_right_to_the_last_digits():
    x = -torch.rand(20_000, dtype=torch.float64) * 40
    np.testing.assert_allclose(exp(x).numpy(), np.exp(x.numpy()), rtol=8e-15)
    special = torch.tensor([0.0, -1.0, -699.0, -800.0, -INF], dtype=torch.float64)
    assert exp(special).tolist() == pytest.approx(
        [1.0, 1 / math.e, math.exp(-699), 0, 0], rel=1e-12
    )
    y = exp(x * 15) + 1e-300
    np.testing.assert_allclose(log(y).numpy(), np.log(y.numpy()), rtol=1e-15)
    near_one = 1 + torch.linspace(-0.3, 0.3, 4001, dtype=torch.float64)
    np.testing.assert_allclose(log(near_one).numpy(), np.log(near_one.numpy()), rtol=1e-15)
    assert log(torch.zeros(1, dtype=torch.float64)).item() == -INF


@given(st.lists(st.floats(-60, 0, width=32), min_size=1, max_size=40))
def test_probabilities_are_softmax_within_the_resolution_of_the_masses(scaled):
    row = torch.tensor([*scaled, 0.0])
    found = probabilities(row)
    torch.testing.assert_close(found, row.double().softmax(0), rtol=0, atol=3e-12)


@pytest.mark.gpu
def test_sampling_bits_are_those_of_the_cpu(gpu):
    count, vocab = 200, 1000
    logits = torch.randn(count, vocab) * 4
    tokens = torch.randint(0, vocab, (len(SAMPLINGS) + 1, 300))
    rows = torch.randint(1, len(SAMPLINGS) + 1, (count,))
    positions = torch.randint(20, 300, (count,))
    results = []
    for device in ("cpu", gpu.device):
        table = SamplerTable(len(SAMPLINGS) + 1, device)
        for row, sampling in enumerate(SAMPLINGS, start=1):
            table.admit(admitted(row, 10, sampling))
        arguments = [part.to(device) for part in (rows, positions, tokens)]
        results.append(sample.reference(logits.to(device), table.state, *arguments, None, True))
    on_cpu, on_gpu = results
    assert same(on_gpu.tokens.cpu(), on_cpu.tokens)
    assert same(on_gpu.law.cpu(), on_cpu.law)
    assert same(tuple(part.cpu() for part in on_gpu.logprobs), tuple(on_cpu.logprobs))


def test_keys_of_a_state_name_seed_position_and_sample():
    table = SamplerTable(3)
    table.admit(admitted(2, 1, RowSampling())._replace(seed=2**64 - 5, sample=7))
    key = table.state.key(torch.tensor([2]), torch.tensor([9]))
    assert same(key, NoiseKey(torch.tensor([-5]), torch.tensor([9]), torch.tensor([7])))
