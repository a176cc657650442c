"""Verification: match path by path, ratio by enumeration of its joint law."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from deepinfer.errors import ConfigError
from deepinfer.ops.noise import NoiseKey, Purpose, gumbel_argmax
from deepinfer.ops.sample import SamplerTable, sample
from deepinfer.ops.sample.cases import admitted
from deepinfer.ops.verify import (
    Verified,
    allocate_draft_laws,
    cut_at_end,
    ratio,
    ratio_bytes,
    verify,
)
from deepinfer.ops.verify.by_ratio import _uniform, residual
from deepinfer.step import FLAG_EMPTY, FLAG_END, FLAG_LIMIT, FLAG_NAN, FLAG_STOP_ID, RowSampling
from tests.ops.small import same

CAP = 4
RATIO = "deepinfer.ops.verify.by_ratio"

# --- match ---------------------------------------------------------------------------------------


@st.composite
def groups(draw):
    """(drafts, chosen, flags) of one request; a flag comes with token -1."""
    count = draw(st.integers(0, CAP))
    drafts = draw(st.lists(st.integers(0, 1), min_size=count, max_size=count))
    chosen = draw(st.lists(st.integers(-1, 1), min_size=count + 1, max_size=count + 1))
    flags = [FLAG_NAN if token < 0 else 0 for token in chosen]
    short = CAP - count
    return drafts + [-1] * short, chosen + [-1] * short, flags + [0] * short


@given(st.lists(groups(), max_size=5))
def test_the_longest_right_prefix_is_kept_with_one_token_more(batch):
    tensors = [torch.tensor(column).view(len(batch), -1) for column in zip(*batch, strict=True)]
    if not batch:
        tensors = [torch.zeros(0, w, dtype=torch.int64) for w in (CAP, CAP + 1, CAP + 1)]
    found = verify.reference(*tensors)
    for i, (drafts, chosen, flags) in enumerate(batch):
        expected = []
        for draft, token in zip([*drafts, -1], chosen, strict=True):
            expected.append(token)
            if draft < 0 or draft != token:
                break
        last = len(expected) - 1
        assert int(found.accepted[i]) == last
        assert found.tokens[i].tolist() == expected + [-1] * (CAP - last)
        assert int(found.flags[i]) == flags[last]


VOCAB, START = 7, 3
PATHS = {
    "plain": RowSampling(temperature=0.9),
    "greedy": RowSampling(temperature=0.0),
    "truncated": RowSampling(top_k=4, top_p=0.8, min_p=0.05),
    "ruled": RowSampling(
        presence_penalty=1.0,
        frequency_penalty=0.5,
        repetition_penalty=1.3,
        min_tokens=6,
        bad_words=((2,), (3, 4), (5, 6, 5)),
        logit_bias=((4, 1.0),),
        forced_token_ids=(-1, -1, 6, -1, -1, 3),
    ),
}


def model(prefix):
    """Logits that depend on the whole prefix and on nothing else."""
    stream = torch.Generator().manual_seed(hash(tuple(prefix)) % 2**60)
    return torch.randn(VOCAB, generator=stream) * 2


def generate(sampling, length, draft_of):
    """Tokens of one row; `draft_of(prefix)` gives the drafts that a step verifies."""
    table = SamplerTable(2)
    table.admit(admitted(1, START, sampling)._replace(end_id=0, stop_ids=(0, 1)))
    prefix, drafts_used = [3, 1, 2], 0
    while len(prefix) < length:
        drafts = draft_of(prefix)[:CAP]
        count = len(drafts) + 1
        known = torch.tensor([[0] * (len(prefix) + CAP), prefix + drafts + [0] * (CAP + 1 - count)])
        logits = torch.stack([model(prefix + drafts[:i]) for i in range(count)])
        positions = len(prefix) + torch.arange(count)
        found = sample.reference(
            logits, table.state, torch.ones(count).long(), positions, known, None
        )
        padded = torch.full((1, CAP + 1), -1)
        padded[0, :count] = found.tokens
        checked = torch.tensor([drafts + [-1] * (CAP - len(drafts))])
        result = verify.reference(checked, padded, torch.zeros(1, CAP + 1, dtype=torch.int32))
        prefix = prefix + [t for t in result.tokens[0].tolist() if t >= 0]
        drafts_used += int(result.accepted)
    return prefix[:length], drafts_used


@pytest.mark.parametrize("name", PATHS)
def test_any_drafts_give_the_tokens_of_a_run_without_drafts(name):
    expected, _ = generate(PATHS[name], 40, lambda _: [])
    for seed in range(4):
        rng = np.random.default_rng(seed)

        def some(prefix, rng=rng):
            right = expected[len(prefix) : len(prefix) + int(rng.integers(0, CAP + 1))]
            return [t if rng.random() < 0.7 else int(rng.integers(0, VOCAB)) for t in right]

        found, used = generate(PATHS[name], 40, some)
        assert found == expected
        assert used > 5


# --- where a row ends ----------------------------------------------------------------------------


@given(
    st.lists(st.integers(0, 4), min_size=1, max_size=CAP + 1),
    st.integers(1, 7),
    st.sampled_from([-1, 0, 1]),
    st.lists(st.integers(1, 2), max_size=2),
    st.sampled_from([0, FLAG_NAN, FLAG_EMPTY]),
)
def test_a_row_ends_with_the_first_token_that_ends_it(tokens, room, end, stops, flag):
    flagged = tokens[:-1] if flag else tokens
    padded = flagged + [-1] * (CAP + 1 - len(flagged))
    found = cut_at_end(
        Verified(
            torch.tensor([len(tokens) - 1]),
            torch.tensor([padded]),
            torch.tensor([flag], dtype=torch.int32),
        ),
        torch.tensor([room]),
        torch.tensor([end]),
        torch.tensor([stops + [-1] * (2 - len(stops))]),
    )
    kept, reason = [], 0
    for token in flagged:
        kept.append(token)
        reason |= FLAG_END if token == end else FLAG_STOP_ID if token in stops else 0
        reason |= FLAG_LIMIT if len(kept) == room else 0
        if reason:
            break
    assert found.tokens[0].tolist() == kept + [-1] * (CAP + 1 - len(kept))
    assert int(found.flags) == (reason or flag)
    assert int(found.accepted) == min(len(tokens) - 1, len(kept))
    assert found.flags.dtype == torch.int32


# --- ratio ---------------------------------------------------------------------------------------

# Laws in twelfths, such that p / q is a multiple of 1/12 where it is below 1: an even grid of
# twelve u then counts acceptance exactly. One of p and one of q for every prefix of drafts.
P = [(4, 6, 2), (1, 5, 6), (0, 12, 0), (7, 0, 5), (3, 3, 6), (2, 4, 6)]
Q = [(3, 3, 6), (6, 2, 4), (4, 4, 4), (6, 6, 0), (3, 3, 6), (12, 0, 0)]
GRID, IDS = 12, 3


def law_of(table, prefix):
    index = sum((token + 1) * 5**place for place, token in enumerate(prefix)) % len(table)
    return np.array(table[index]) / 12


def as_scaled(law):
    with np.errstate(divide="ignore"):
        logs = np.log(law)
    return torch.tensor(logs - logs.max(), dtype=torch.float32)


def paths(drafts):
    """Every way to draft `drafts` tokens, with every u of the grid for each."""
    tokens = itertools.product(range(IDS), repeat=drafts)
    grid = [(k + 0.5) / GRID for k in range(GRID)]
    return list(itertools.product(tokens, itertools.product(grid, repeat=drafts)))


@pytest.mark.parametrize("drafts", [1, 2])
def test_ratio_keeps_the_joint_law_of_the_target(monkeypatch, drafts):
    every = paths(drafts)
    seen = []  # the laws that residual draws use, one a column

    def uniform(key):
        return torch.tensor([u[int(key.position[0])] for _, u in every], dtype=torch.float64)

    def draw(scaled, key, purpose):
        assert purpose == Purpose.RESIDUAL
        seen.append(scaled.double().softmax(1).numpy())
        return torch.full((len(every),), IDS)  # stands for "any, by that law"

    monkeypatch.setattr(f"{RATIO}._uniform", uniform)
    monkeypatch.setattr(f"{RATIO}.gumbel_argmax", draw)
    zero = torch.zeros(len(every), dtype=torch.int64)
    target = [[as_scaled(law_of(P, d[:i])) for i in range(drafts + 1)] for d, _ in every]
    drafted = [[as_scaled(law_of(Q, d[:i])) for i in range(drafts)] for d, _ in every]
    found = ratio(
        torch.tensor([d for d, _ in every]),
        torch.zeros(len(every), drafts + 1, dtype=torch.int64),
        torch.zeros(len(every), drafts + 1, dtype=torch.int32),
        torch.stack([torch.stack(laws) for laws in target]),
        torch.stack([torch.stack(laws) for laws in drafted]),
        NoiseKey(zero, zero, zero),
    )
    joint = np.zeros((IDS,) * drafts)
    for row, (d, _) in enumerate(every):
        q = [law_of(Q, d[:i])[d[i]] for i in range(drafts)]
        weight = math.prod(q) / GRID**drafts
        count = int(found.accepted[row])
        if count == drafts:
            joint[d] += weight
            continue
        assert found.tokens[row].tolist()[: count + 1] == [*d[:count], IDS]
        for token, chance in enumerate(seen[count][row]):
            joint[(*d[:count], token)] += weight * chance * rest_law((*d[:count], token), drafts)
    assert np.abs(joint - rest_law((), drafts)).max() < 1e-6


def rest_law(prefix, total):
    """The target's joint law of the tokens behind `prefix` up to `total` tokens."""
    if len(prefix) == total:
        return 1.0
    law = law_of(P, prefix)
    return np.array([law[t] * rest_law((*prefix, t), total) for t in range(IDS)])


def test_residual_is_what_the_target_has_more_or_the_target_itself():
    p = torch.tensor([[0.5, 0.5, 0.0], [0.2, 0.3, 0.5]], dtype=torch.float64)
    q = torch.tensor([[0.25, 0.75, 0.0], [0.2, 0.3, 0.5]], dtype=torch.float64)
    assert residual(p, q).tolist() == [[0.25, 0.0, 0.0], [0.2, 0.3, 0.5]]


ROUNDS = 40_000


def ratio_tokens(drafting):
    """First tokens of many positions, drafts drawn with noise of purpose `drafting`."""
    p, q = np.array([0.45, 0.35, 0.15, 0.05]), np.array([0.1, 0.3, 0.2, 0.4])
    zero = torch.zeros(ROUNDS, dtype=torch.int64)
    key = NoiseKey(zero + 11, torch.arange(ROUNDS), zero)
    law, draft_law = (as_scaled(x).expand(ROUNDS, 1, 4) for x in (p, q))
    drafts = gumbel_argmax(draft_law[:, 0], key, drafting)
    nothing = torch.zeros(ROUNDS, 2, dtype=torch.int64)
    found = ratio(
        drafts.unsqueeze(1), nothing, nothing.int(), law.expand(ROUNDS, 2, 4), draft_law, key
    )
    accepted = found.accepted.double().mean()
    return np.bincount(found.tokens[:, 0], minlength=4), p, float(accepted), np.minimum(p, q).sum()


def test_ratio_follows_the_target_with_its_own_noise():
    counts, p, accepted, expected = ratio_tokens(Purpose.DRAFT)
    assert ((counts - p * ROUNDS) ** 2 / (p * ROUNDS)).sum() < 30.7  # chi^2, 3 free, 1e-6
    assert abs(accepted - expected) < 5 * math.sqrt(0.25 / ROUNDS)


def test_ratio_is_biased_if_drafts_share_the_noise_of_the_residual():
    counts, p, *_ = ratio_tokens(Purpose.RESIDUAL)
    assert ((counts - p * ROUNDS) ** 2 / (p * ROUNDS)).sum() > 100


def test_ratio_uses_the_noise_of_each_drafts_own_position():
    count, zero = 500, torch.zeros(500, dtype=torch.int64)
    law, first, second = torch.randn(3, count, 1, 6)
    law, first, second = (x - x.amax(-1, keepdim=True) for x in (law, first, second))
    key = NoiseKey(zero + 5, torch.arange(count) * 3, zero)
    drafts = torch.randint(0, 6, (count, 2))
    chosen, flags = torch.full((count, 3), 1), torch.zeros(count, 3, dtype=torch.int32)
    # The first draft is accepted for certain: its law is the target's.
    laws = torch.cat((first, law, law), 1)
    both = ratio(drafts, chosen, flags, laws, torch.cat((first, second), 1), key)
    later = key._replace(position=key.position + 1)
    alone = ratio(drafts[:, 1:], chosen[:, 1:], flags[:, 1:], laws[:, 1:], second, later)
    assert (both.tokens[:, 0] == drafts[:, 0]).all()
    assert (both.tokens[:, 1:] == alone.tokens).all()
    assert (both.accepted == alone.accepted + 1).all()


def test_ratio_of_greedy_rows_is_match():
    certain = torch.tensor([[0.0, -math.inf], [-math.inf, 0.0], [0.0, -math.inf]])
    law = certain.expand(4, 3, 2)
    drafts = torch.tensor([[0, 1], [0, 0], [1, 1], [-1, -1]])
    chosen, flags = torch.tensor([[0, 1, 0]]).repeat(4, 1), torch.zeros(4, 3, dtype=torch.int32)
    zero = torch.zeros(4, dtype=torch.int64)
    draft_law = torch.zeros(4, 2, 2)
    found = ratio(drafts, chosen, flags, law, draft_law, NoiseKey(zero, zero, zero))
    assert same(found, verify.reference(drafts, chosen, flags))


def test_ratio_without_drafts_takes_the_sampled_token():
    zero = torch.zeros(2, dtype=torch.int64)
    none = torch.zeros(2, 0, dtype=torch.int64)
    chosen = torch.tensor([[4], [-1]])
    flags = torch.tensor([[0], [FLAG_NAN]], dtype=torch.int32)
    laws = torch.zeros(2, 1, 5), torch.zeros(2, 0, 5)
    found = ratio(none, chosen, flags, *laws, NoiseKey(zero, zero, zero))
    assert found.tokens.tolist() == [[4], [-1]]
    assert found.flags.tolist() == [0, FLAG_NAN]


def test_ratio_never_accepts_a_draft_where_the_target_has_no_token():
    zero = torch.zeros(1, dtype=torch.int64)
    draft_law = torch.full((1, 1, 3), math.nan)  # absent drafts may have any law
    for drafts in ([[1]], [[-1]]):
        law = torch.zeros(1, 1, 3) if drafts[0][0] >= 0 else draft_law
        found = ratio(
            torch.tensor(drafts),
            torch.tensor([[-1, 2]]),
            torch.tensor([[FLAG_EMPTY, 0]], dtype=torch.int32),
            torch.zeros(1, 2, 3),
            law,
            NoiseKey(zero, zero, zero),
        )
        assert found.tokens.tolist() == [[-1, -1]]
        assert found.accepted.tolist() == [0]
        assert found.flags.tolist() == [FLAG_EMPTY]


def test_acceptance_words_are_those_of_id_0_and_even_over_the_unit_interval():
    zero = torch.zeros(4000, dtype=torch.int64)
    u = _uniform(NoiseKey(zero, torch.arange(4000), zero)).sort().values
    assert u[0] > 0
    assert u[-1] < 1
    gap = (u - (torch.arange(4000) + 0.5) / 4000).abs().max()
    assert gap < 2.7 / math.sqrt(4000)  # Kolmogorov, 1e-6
    assert u.dtype == torch.float64


def test_ratio_stores_one_number_an_id_and_refuses_more_than_its_limit():
    assert ratio_bytes(64, 5, 129_280) == 64 * 5 * 129_280 * 4
    assert allocate_draft_laws(2, 5, 100).shape == (2, 5, 100)
    with pytest.raises(ConfigError, match="use 'match'"):
        allocate_draft_laws(1024, 5, 129_280)
    with pytest.raises(ConfigError, match="4000 bytes, more than 3999"):
        allocate_draft_laws(2, 5, 100, most_bytes=3999)
