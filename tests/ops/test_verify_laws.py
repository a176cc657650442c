"""Verification that keeps laws instead of paths: ratio and block, by enumeration."""

import itertools
import math

import numpy as np
import pytest
import torch

from deepinfer.errors import ConfigError
from deepinfer.ops.noise import NoiseKey, Purpose, gumbel_argmax
from deepinfer.ops.verify import allocate_draft_laws, block, ratio, ratio_bytes, verify
from deepinfer.ops.verify.by_block import judge
from deepinfer.ops.verify.by_ratio import residual, uniform
from deepinfer.step import FLAG_EMPTY, FLAG_NAN
from tests.ops.small import same

RATIO = "deepinfer.ops.verify.by_ratio"

# --- ratio ---------------------------------------------------------------------------------------

# Laws in twelfths, such that p / q is a multiple of 1/12 where it is below 1: an even grid of
# twelve u then counts acceptance exactly. One of p and one of q for every prefix of drafts.
P = [(4, 6, 2), (1, 5, 6), (0, 12, 0), (7, 0, 5), (3, 3, 6), (2, 4, 6)]
Q = [(3, 3, 6), (6, 2, 4), (4, 4, 4), (6, 6, 0), (3, 3, 6), (12, 0, 0)]
GRID, IDS = 12, 3
# Even over some of the ids: these laws have no rounding at all.
EVEN_P = [(6, 6, 0), (4, 4, 4), (0, 12, 0), (0, 6, 6), (4, 4, 4), (6, 0, 6)]
EVEN_Q = [(4, 4, 4), (6, 0, 6), (6, 6, 0), (4, 4, 4), (0, 6, 6), (12, 0, 0)]


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


@pytest.mark.parametrize(
    ("table", "drafted_by", "drafts", "error"),
    [(P, Q, 1, 1e-6), (P, Q, 2, 1e-6), (EVEN_P, EVEN_Q, 2, 1e-12), (EVEN_Q, EVEN_P, 2, 1e-12)],
)
def test_ratio_keeps_the_joint_law_of_the_target(monkeypatch, table, drafted_by, drafts, error):
    every = paths(drafts)
    seen = []  # the laws that residual draws use, each at the first rejected draft

    def uniform(key):
        return torch.tensor([u[int(key.position[0])] for _, u in every], dtype=torch.float64)

    def draw(scaled, key, purpose):
        assert purpose == Purpose.RESIDUAL
        seen.append(scaled.double().softmax(1).numpy())
        return torch.full((len(every),), IDS)  # stands for "any, by that law"

    monkeypatch.setattr(f"{RATIO}.uniform", uniform)
    monkeypatch.setattr(f"{RATIO}.gumbel_argmax", draw)
    zero = torch.zeros(len(every), dtype=torch.int64)
    target = [[as_scaled(law_of(table, d[:i])) for i in range(drafts + 1)] for d, _ in every]
    drafted = [[as_scaled(law_of(drafted_by, d[:i])) for i in range(drafts)] for d, _ in every]
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
        q = [law_of(drafted_by, d[:i])[d[i]] for i in range(drafts)]
        weight = math.prod(q) / GRID**drafts
        if not weight:
            continue
        count = int(found.accepted[row])
        if count == drafts:
            joint[d] += weight
            continue
        assert found.tokens[row].tolist()[: count + 1] == [*d[:count], IDS]
        for token, chance in enumerate(seen[0][row]):
            joint[(*d[:count], token)] += (
                weight * chance * rest_law(table, (*d[:count], token), drafts)
            )
    assert np.abs(joint - rest_law(table, (), drafts)).max() < error


def rest_law(table, prefix, total):
    """The target's joint law of the tokens behind `prefix` up to `total` tokens."""
    if len(prefix) == total:
        return 1.0
    law = law_of(table, prefix)
    return np.array([law[t] * rest_law(table, (*prefix, t), total) for t in range(IDS)])


def test_residual_is_what_the_target_has_more_or_the_target_itself():
    p = torch.tensor([[0.5, 0.5, 0.0], [0.2, 0.3, 0.5]], dtype=torch.float64)
    q = torch.tensor([[0.25, 0.75, 0.0], [0.2, 0.3, 0.5]], dtype=torch.float64)
    assert residual(p, q, p).tolist() == [[0.25, 0.0, 0.0], [0.2, 0.3, 0.5]]


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
    u = uniform(NoiseKey(zero, torch.arange(4000), zero)).sort().values
    assert u[0] > 0
    assert u[-1] < 1
    gap = (u - (torch.arange(4000) + 0.5) / 4000).abs().max()
    assert gap < 2.7 / math.sqrt(4000)  # Kolmogorov, 1e-6
    assert u.dtype == torch.float64


# --- block ---------------------------------------------------------------------------------------


def random_tables(seed):
    """Laws of three ids for six prefixes, some of them impossible."""
    laws = np.random.default_rng(seed).dirichlet((0.5, 0.5, 0.5), 6)
    laws[seed % 6, seed % 3] = 0
    return laws * 12 / laws.sum(axis=1, keepdims=True)


def enumerated(table, drafted_by, drafts, rule):
    """Joint law of the next tokens and mean number of accepted drafts, by `rule(p, q, path)`.

    The rule gives the probability of each number of accepted drafts, and the laws (not normalised)
    of the token that follows when they are fewer than all.
    """
    joint, mean = np.zeros((IDS,) * drafts), 0.0
    for path in itertools.product(range(IDS), repeat=drafts):
        q = np.array([law_of(drafted_by, path[:i]) for i in range(drafts)])
        p = np.array([law_of(table, path[:i]) for i in range(drafts)])
        weight = math.prod(q[i][path[i]] for i in range(drafts))
        if not weight:
            continue
        chances, laws = rule(p, q, path)
        assert abs(sum(chances) - 1) < 1e-14
        joint[path] += weight * chances[drafts]
        mean += weight * sum(count * chance for count, chance in enumerate(chances))
        for count in range(drafts):
            law = laws[count] / laws[count].sum()
            for token in range(IDS):
                here = (*path[:count], token)
                more = rest_law(table, here, drafts)
                joint[here] += weight * chances[count] * law[token] * more
    return joint, mean


def by_block(p, q, path):
    found = judge(torch.from_numpy(p)[None], torch.from_numpy(q)[None], torch.tensor([path]))
    limits = found.surplus / (found.surplus + found.rest).clamp(min=1e-300)
    chances, left = [], 1.0
    for limit in limits[0].tolist()[::-1]:
        chances.append(left * limit)
        left *= 1 - limit
    weight = found.weight[0].numpy()
    laws = [residual(*(torch.from_numpy(x) for x in (weight[i] * p[i], q[i], p[i]))).numpy()
            for i in range(len(path))]  # fmt: skip
    return [left, *chances[::-1]], laws


def by_ratio(p, q, path):
    chances, left = [], 1.0
    for i, token in enumerate(path):
        right = min(1.0, p[i][token] / q[i][token])
        chances.append(left * (1 - right))
        left *= right
    laws = [residual(*map(torch.from_numpy, (p[i], q[i], p[i]))).numpy() for i in range(len(path))]
    return [*chances, left], laws


@pytest.mark.parametrize("drafts", [1, 2, 3])
@pytest.mark.parametrize("seed", range(6))
def test_block_and_ratio_keep_the_joint_law_exactly_and_block_accepts_no_less(seed, drafts):
    table, drafted_by = random_tables(seed), random_tables(seed + 100)
    block_law, block_mean = enumerated(table, drafted_by, drafts, by_block)
    ratio_law, ratio_mean = enumerated(table, drafted_by, drafts, by_ratio)
    wanted = rest_law(table, (), drafts)
    assert np.abs(ratio_law - wanted).max() < 1e-12
    assert np.abs(block_law - wanted).max() < 1e-12
    assert block_mean >= ratio_mean - 1e-12
    if drafts == 3:
        assert block_mean > ratio_mean


def test_a_rule_that_looks_ahead_is_caught_by_the_enumeration():
    """A schedule must not drop a draft because of what it is (dspark-and-replay.md 5.4)."""

    def anticipating(p, q, path):
        return by_ratio(p, q, path) if path[0] == 0 else ([1.0, 0.0], [p[0]])

    table, drafted_by = [(8.4, 3.6, 0)], [(6, 6, 0)]
    honest, _ = enumerated(table, drafted_by, 1, by_ratio)
    found, _ = enumerated(table, drafted_by, 1, anticipating)
    assert np.allclose(honest, [0.7, 0.3, 0])
    assert np.allclose(found, [0.85, 0.15, 0])


@pytest.mark.parametrize("seed", range(4))
def test_block_keeps_the_last_draft_whose_threshold_is_not_exceeded(monkeypatch, seed):
    generator = torch.Generator().manual_seed(seed)
    count, cap, vocab = 60, 3, 5
    law, draft_law = (torch.randn(count, cap + i, vocab, generator=generator) for i in (1, 0))
    law, draft_law = (x - x.amax(-1, keepdim=True) for x in (law, draft_law))
    drafts = torch.randint(0, vocab, (count, cap), generator=generator)
    absent = torch.arange(cap) >= torch.randint(0, cap + 1, (count, 1), generator=generator)
    drafts = drafts.masked_fill(absent, -1)
    chosen = torch.randint(0, vocab, (count, cap + 1), generator=generator)
    chosen[::7, 1] = -1  # no token: nothing from there on is accepted
    zero = torch.zeros(count, dtype=torch.int64)
    key = NoiseKey(zero + seed, torch.arange(count) * 10, zero)
    flags = torch.where(chosen < 0, FLAG_NAN, 0).int()
    found = block(drafts, chosen, flags, law, draft_law, key)
    p, q = (torch.softmax(x.double(), -1) for x in (law[:, :cap], draft_law))
    for row in range(count):
        length = int((drafts[row] >= 0).sum())
        length = min(length, 1) if row % 7 == 0 else length
        path = torch.where(torch.arange(cap) < length, drafts[row], -1)
        judged = judge(p[row : row + 1], q[row : row + 1], path[None])
        expected = 0
        for k in range(length):
            u = float(uniform(NoiseKey(*(x[row : row + 1] for x in key))._replace(
                position=torch.tensor([10 * row + k]))))  # fmt: skip
            s, r = float(judged.surplus[0, k]), float(judged.rest[0, k])
            expected = k + 1 if u * (s + r) <= s else expected
        assert int(found.accepted[row]) == expected
        tokens = found.tokens[row].tolist()
        assert tokens[:expected] == drafts[row].tolist()[:expected]
        assert tokens[expected + 1 :] == [-1] * (cap - expected)
        if expected == length:
            assert tokens[expected] == int(chosen[row, expected])
            assert int(found.flags[row]) == int(flags[row, expected])


def test_block_of_greedy_rows_is_match_and_without_drafts_the_sampled_token():
    certain = torch.tensor([[0.0, -math.inf], [-math.inf, 0.0], [0.0, -math.inf]])
    drafts = torch.tensor([[0, 1], [0, 0], [1, 1], [-1, -1], [0, -1]])
    law = certain.expand(5, 3, 2)
    chosen, flags = torch.tensor([[0, 1, 0]]).repeat(5, 1), torch.zeros(5, 3, dtype=torch.int32)
    draft_law = torch.full((5, 2, 2), -math.inf)
    draft_law.scatter_(2, drafts.clamp(min=0).unsqueeze(-1), 0.0)
    draft_law[3:, 1] = math.nan  # absent drafts may have any law
    zero = torch.zeros(5, dtype=torch.int64)
    key = NoiseKey(zero, zero, zero)
    assert same(
        block(drafts, chosen, flags, law, draft_law, key), verify.reference(drafts, chosen, flags)
    )
    none = block(drafts[:, :0], chosen[:, :1], flags[:, :1], law[:, :1], draft_law[:, :0], key)
    assert none.tokens.tolist() == [[0]] * 5


def test_block_follows_the_target_over_many_seeds():
    count, zero = 30_000, torch.zeros(30_000, dtype=torch.int64)
    p, q = np.array([0.45, 0.35, 0.15, 0.05]), np.array([0.1, 0.3, 0.2, 0.4])
    key = NoiseKey(zero + 5, torch.arange(count) * 2, zero)
    law, draft_law = as_scaled(p).expand(count, 3, 4), as_scaled(q).expand(count, 2, 4)
    drafts = torch.stack(
        [gumbel_argmax(draft_law[:, i], key._replace(position=key.position + i), Purpose.DRAFT)
         for i in range(2)], dim=1)  # fmt: skip
    chosen = torch.stack(
        [gumbel_argmax(law[:, i], key._replace(position=key.position + i), Purpose.TARGET)
         for i in range(3)], dim=1)  # fmt: skip
    flags = torch.zeros(count, 3, dtype=torch.int32)
    found = block(drafts, chosen, flags, law, draft_law, key)
    counts = np.bincount(found.tokens[:, 0], minlength=4)
    assert ((counts - p * count) ** 2 / (p * count)).sum() < 30.7  # chi^2, 3 free, 1e-6
    assert found.accepted.sum() > ratio(drafts, chosen, flags, law, draft_law, key).accepted.sum()


def test_ratio_stores_one_number_an_id_and_refuses_more_than_its_limit():
    assert ratio_bytes(64, 5, 129_280) == 64 * 5 * 129_280 * 4
    assert allocate_draft_laws(2, 5, 100).shape == (2, 5, 100)
    with pytest.raises(ConfigError, match="use 'match'"):
        allocate_draft_laws(1024, 5, 129_280)
    with pytest.raises(ConfigError, match="4000 bytes, more than 3999"):
        allocate_draft_laws(2, 5, 100, most_bytes=3999)
