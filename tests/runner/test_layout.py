"""The layout of slices against a list made one token at a time; what goes up to the device."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from deepinfer.ops.decoding import share_drafts
from deepinfer.runner.layout import Slices, lay_out
from deepinfer.runner.rows import RowLimits, Rows, send
from deepinfer.step import PageAppend, Prefill, StepPlan
from tests.ops.small import same

CPU = torch.device("cpu")
slices = st.lists(
    st.tuples(st.integers(0, 9), st.integers(1, 7), st.booleans(), st.integers(0, 14)), max_size=5
).map(
    lambda items: (
        [
            Prefill(row, start, length, emits)
            for row, (start, length, emits, _) in enumerate(items, 1)
        ],
        {row: lower for row, (*_, lower) in enumerate(items, 1)},
    )
)


@given(slices)
def test_slices_equal_a_list_made_token_by_token(case):
    prefill, lower = case
    found = Slices.of(prefill, lower)
    tokens = [
        (item.row, position, item.start, item.start + item.length)
        for item in prefill
        for position in range(item.start, item.start + item.length)
    ]
    kept = [i for i, (row, position, *_) in enumerate(tokens) if position >= lower[row]]
    assert (found.tokens, found.kept) == (len(tokens), len(kept))
    assert found.replay == any(lower.values())
    if not prefill:
        assert found == Slices()
        return
    assert found.parts["prefill"].T.tolist() == [list(token) for token in tokens]
    assert found.parts.get("keep", np.arange(len(tokens))).tolist() == kept
    spans = [[i for i in kept if tokens[i][0] == item.row] for item in prefill]
    ends = np.cumsum([len(span) for span in spans])
    emitting = [(end - 1, item.row) for end, item in zip(ends, prefill, strict=True) if item.emits]
    assert found.parts["emit"].T.tolist() == [list(pair) for pair in emitting]
    assert [last - first for first, last in found.bounds] == [item.length for item in prefill]
    assert [last - first for first, last in found.kept_bounds] == [len(s) for s in spans if s]


def table(lengths, drafts, caps):
    rows = Rows(RowLimits(rows=len(lengths) + 1, tokens=64, pages=2, drafts=4), CPU)
    for row, values in enumerate(zip(lengths, drafts, caps, strict=True), 1):
        rows.length[row], rows.drafts[row], rows.cap[row] = values
        rows.limit[row] = 50
        rows.tokens[row] = torch.arange(68) + 100 * row
    rows.ended[1:] = False
    return rows


decoding = st.lists(
    st.tuples(st.integers(1, 50), st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=5
)


@given(decoding, st.integers(0, 9), st.integers(0, 4), st.integers(0, 6))
def test_padding_rows_and_places_change_nothing_before_them(items, budget, padding, spare):
    """What a graph computes beyond the real rows comes last and is of row 0."""
    rows = table(*zip(*items, strict=True))
    rows.budget.fill_(budget)
    real = torch.arange(1, len(items) + 1)
    plain = lay_out(rows, Slices(), {}, real, budget, 64, 3)
    wider = torch.cat((real, torch.zeros(padding, dtype=torch.int64)))
    padded = lay_out(rows, Slices(), {}, wider, budget + spare, 64, 3)
    used = int(plain.verified.sum()) + len(items)
    for name in ("history", "sample_row", "depth"):
        assert same(getattr(plain, name)[:used], getattr(padded, name)[:used])
    assert padded.sample_row[used:].count_nonzero() == 0
    assert same(plain.verified, padded.verified[: len(items)])
    assert padded.verified[len(items) :].count_nonzero() == 0
    assert same(plain.first, padded.first[: len(items)])
    for name in ("positions", "rows", "starts", "ends"):
        assert same(getattr(plain.batch, name)[:used], getattr(padded.batch, name)[:used])
    assert int(share_drafts(real, rows).sum()) <= budget


def test_a_plan_goes_up_in_one_array_and_a_quiet_one_not_at_all():
    rows = table([3, 4], [0, 0], [0, 0])
    quiet = StepPlan(7, max_len_hi=9)
    assert rows.changes(quiet, {1, 2}) == {}
    assert send({}, CPU) == {}
    plan = StepPlan(
        8, release=(1,), pages=(PageAppend(2, 1, 9),), decode_remove=(1,), draft_budget=3
    )
    parts = rows.changes(plan, {2})
    sent = send(parts, CPU)
    assert len({tensor.untyped_storage().data_ptr() for tensor in sent.values()}) == 1
    rows.change(plan, sent)
    assert rows.ended.tolist() == [True, True, False]
    assert rows.pages.tolist() == [[0, 0], [0, 0], [0, 9]]
    assert rows.decoding.tolist() == [2, 0, 0]
    assert rows.budget.tolist() == [3]
    assert rows.changes(StepPlan(9, draft_budget=3), {2}) == {}
