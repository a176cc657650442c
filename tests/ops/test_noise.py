"""The generator bit by bit, and how far its draws are from exact Gumbel-max sampling."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from deepinfer.ops.noise import NoiseKey, Purpose, gumbel, gumbel_argmax, philox, words
from tests.ops import numpy_noise

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "sampling.md").read_text(encoding="utf-8")
EDGES = np.unique(
    np.concatenate(
        [
            np.arange(70),
            2**32 - 1 - np.arange(70),
            *(2**k + np.arange(-3, 4) for k in range(3, 32)),
        ]
    )
)


def key_of(seed, position, sample=0):
    """A key of one row for any 64-bit seed."""
    signed = (seed + 2**63) % 2**64 - 2**63
    return NoiseKey(*(torch.tensor([value]) for value in (signed, position, sample)))


# Published with the Random123 library: counter, key, output.
KNOWN = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((2**32 - 1,) * 4, (2**32 - 1,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN)
def test_philox_gives_its_published_answers(counter, key, expected):
    parts = [tuple(torch.tensor(value) for value in group) for group in (counter, key)]
    assert tuple(int(word) for word in philox(*parts)) == expected


@given(
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**20),
    st.sampled_from(Purpose),
    st.integers(0, 127),
    st.integers(1, 41),
)
def test_words_equal_the_numpy_version(seed, position, purpose, sample, vocab):
    found = words(key_of(seed, position, sample), purpose, vocab)
    expected = numpy_noise.philox_words(seed, position, purpose, sample, np.arange(vocab))
    assert found[0].tolist() == expected.tolist()


def test_noise_bits_equal_the_numpy_version():
    drawn = np.concatenate([EDGES, np.random.default_rng(0).integers(0, 2**32, 200_000)])
    found = gumbel(torch.from_numpy(drawn)).numpy()
    assert (found.view(np.int32) == numpy_noise.gumbel(drawn).view(np.int32)).all()


def test_noise_is_the_formula_within_two_units_of_1e8_before_rounding():
    drawn = np.concatenate([EDGES, np.random.default_rng(1).integers(0, 2**32, 200_000)])
    found, exact = gumbel(torch.from_numpy(drawn)).numpy(), numpy_noise.exact_gumbel(drawn)
    half_ulp = np.spacing(np.abs(exact).astype(np.float32)).astype(np.float64) / 2
    assert (np.abs(found - exact) <= 2e-8 + half_ulp).all()


def test_the_extreme_words_give_finite_noise_in_the_stated_range():
    noise = gumbel(torch.tensor([0, 1, 2**32 - 2, 2**32 - 1]))
    assert noise[0] == noise[1]
    assert noise[2] == noise[3]
    assert -3.1 < noise[0] < -3.09
    assert 22.18 < noise[3] < 22.2


def test_noise_never_falls_as_the_word_grows():
    # Not needed for sampling, but the bisection of the tests below relies on it.
    drawn = np.unique(np.concatenate([EDGES, np.random.default_rng(2).integers(0, 2**32, 300_000)]))
    noise = numpy_noise.gumbel(drawn).astype(np.float64)
    assert (np.diff(noise) >= -1e-8 - np.spacing(np.abs(noise[1:]).astype(np.float32))).all()


def smallest_winning(score, best, strict):
    """For each b in `best` [n] the least odd y whose fp32 score + noise reaches it."""
    low, high = np.zeros(len(best), np.int64), np.full(len(best), 2**31, np.int64)
    while (low < high).any():
        middle = (low + high) // 2
        reached = score + numpy_noise.gumbel(np.minimum(2 * middle + 1, 2**32 - 1))
        wins = np.where(strict, reached > best, reached >= best)
        open_ = low < high
        high = np.where(open_ & wins, middle, high)
        low = np.where(open_ & ~wins, middle + 1, low)
    return low


def probability_errors(scores, others, weights):
    """Win probability of each id as drawn minus the exact one, averaged over words of the rest.

    Given the others' words, the chance of an id is a count of its own words, so nothing is drawn
    for it: what is left to average is a small difference.

    Args:
        scores: [ids] float32.
        others: [n, ids] words; column v is not used for id v.
        weights: [n], sum 1.
    """
    errors, exact_mean = [], []
    with_noise = scores + numpy_noise.gumbel(others)
    exactly = scores.astype(np.float64) + numpy_noise.exact_gumbel(others)
    for v in range(len(scores)):
        rest = np.delete(np.arange(len(scores)), v)
        best = rest[with_noise[:, rest].argmax(1)]
        reach = with_noise[np.arange(len(others)), best]
        places = smallest_winning(scores[v], reach, strict=best < v)
        drawn = 1 - places / 2.0**31
        exact = -np.expm1(-np.exp(scores[v] - exactly[:, rest].max(1)))
        errors.append((weights * (drawn - exact)).sum())
        exact_mean.append((weights * exact).sum())
    return np.array(errors), np.array(exact_mean)


def quadrature(points):
    """Odd words and weights: `points` strata in every halving towards both ends of (0, 1)."""
    edges = [2.0**-j for j in range(24, 0, -1)]
    bounds = np.array([0.0, *edges, *(1 - e for e in reversed(edges[:-1])), 1.0])
    inner = (np.arange(points) + 0.5) / points
    u = bounds[:-1, None] + np.diff(bounds)[:, None] * inner
    weight = np.broadcast_to(np.diff(bounds)[:, None] / points, u.shape)
    return (u.ravel() * 2.0**31).astype(np.int64) * 2 + 1, weight.ravel()


@pytest.mark.parametrize("gap", [0.0, 1e-4, 0.3, 1.0, 2.7, 7.5, 14.0])
@pytest.mark.parametrize("likelier", [0, 1])
def test_two_token_laws_are_exact_within_a_ten_millionth(gap, likelier):
    scores = np.zeros(2, np.float32)
    scores[1 - likelier] = -gap
    word, weight = quadrature(24)
    errors, found = probability_errors(scores, np.stack([word, word], 1), weight)
    law = np.exp(scores.astype(np.float64))
    assert np.abs(found - law / law.sum()).max() < 2e-5  # the quadrature itself is sound
    assert np.abs(errors).max() < 1e-7


@pytest.mark.parametrize("seed", range(6))
def test_random_laws_are_exact_within_a_ten_millionth(seed):
    rng = np.random.default_rng(seed)
    scores = (rng.normal(size=rng.integers(3, 9)) * rng.uniform(0.5, 5)).astype(np.float32)
    scores -= scores.max()
    others = rng.integers(0, 2**32, (2000, len(scores)))
    errors, _ = probability_errors(scores, others, np.full(2000, 1 / 2000))
    assert np.abs(errors).sum() / 2 < 1e-7


def test_a_noise_with_a_wrong_constant_would_be_noticed(monkeypatch):
    right = numpy_noise.gumbel
    monkeypatch.setattr(numpy_noise, "gumbel", lambda w: right(w) * np.float32(1 + 1e-5))
    word, weight = quadrature(24)
    scores = np.array([0.0, -2.7], np.float32)
    errors, _ = probability_errors(scores, np.stack([word, word], 1), weight)
    assert np.abs(errors).max() > 1e-7


def test_draws_agree_with_float64_unless_two_scores_are_as_good_as_equal():
    rng = np.random.default_rng(7)
    scaled = torch.from_numpy(rng.normal(size=(20_000, 13)).astype(np.float32) * 3)
    scaled -= scaled.amax(1, keepdim=True)
    key = NoiseKey(torch.full((20_000,), 5), torch.arange(20_000), torch.zeros(20_000).long())
    exact = scaled.double().numpy() + numpy_noise.exact_gumbel(words(key, Purpose.TARGET, 13))
    order = np.sort(exact, axis=1)
    clear = order[:, -1] - order[:, -2] > 4e-6
    found = gumbel_argmax(scaled, key, Purpose.TARGET).numpy()
    assert clear.mean() > 0.999
    assert (found == exact.argmax(1))[clear].all()


def test_every_part_of_the_key_changes_the_noise_and_nothing_else_does():
    base = (3, 10, 0)
    ours = words(key_of(*base), Purpose.TARGET, 64)
    for other in ((3 + 2**32, 10, 0), (4, 10, 0), (3, 11, 0), (3, 10, 1)):
        assert (words(key_of(*other), Purpose.TARGET, 64) == ours).sum() == 0
    for purpose in (Purpose.DRAFT, Purpose.RESIDUAL, Purpose.ACCEPT):
        assert (words(key_of(*base), purpose, 64) == ours).sum() == 0
    assert (words(key_of(*base), Purpose.TARGET, 17) == ours[:, :17]).all()
    many = NoiseKey(*(torch.tensor(p) for p in ([9, 3, 9], [8, 10, 1], [0, 0, 7])))
    assert (words(many, Purpose.TARGET, 64)[1] == ours[0]).all()


def documented_vectors():
    """Rows of the table in docs/sampling.md."""
    number = r"\s*(0x[0-9a-f]+|\d+)\s*\|"
    rows = re.findall(r"(?m)^\|" + number * 7 + r"\s*(-?[\d.]+)\s*\|$", TEXT)
    return [[int(cell, 0) for cell in row[:7]] for row in rows]


def test_the_documented_vectors_hold_in_both_versions():
    vectors = documented_vectors()
    assert len(vectors) == 8
    for seed, position, purpose, sample, token, word, bits in vectors:
        ours = words(key_of(seed, position, sample), Purpose(purpose), token + 1)[0, token]
        theirs = numpy_noise.philox_words(seed, position, purpose, sample, [token])
        assert int(ours) == int(theirs[0]) == word
        assert int(gumbel(ours).view(torch.int32)) % 2**32 == bits
        assert int(numpy_noise.gumbel(theirs).view(np.uint32)[0]) == bits


def test_the_documented_coefficients_are_the_ones_in_use():
    numbers = re.search(r"(?s)```\n(1549082000.*?)```", TEXT)
    assert numbers
    assert [int(n) for n in numbers[1].replace(",", " ").split()] == numpy_noise.COEFFICIENTS


@pytest.mark.gpu
def test_noise_bits_are_those_of_the_cpu(gpu):
    key = NoiseKey(torch.arange(-40, 40) << 57, torch.arange(80), torch.arange(80) % 3)
    there = NoiseKey(*(part.to(gpu.device) for part in key))
    found = words(there, Purpose.DRAFT, 129_280)
    expected = words(key, Purpose.DRAFT, 129_280)
    assert (found.cpu() == expected).all()
    edges = torch.from_numpy(EDGES)
    for drawn in (expected, edges):
        assert (gumbel(drawn.to(gpu.device)).cpu() == gumbel(drawn)).all()
