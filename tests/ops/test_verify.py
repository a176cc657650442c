"""Verification by match, path by path, and where a row ends; other rules: test_verify_laws.py."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from deepinfer.ops.sample import SamplerTable, sample
from deepinfer.ops.sample.cases import admitted
from deepinfer.ops.verify import (
    Verified,
    cut_at_end,
    verify,
)
from deepinfer.step import FLAG_EMPTY, FLAG_END, FLAG_LIMIT, FLAG_NAN, FLAG_STOP_ID, RowSampling

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
