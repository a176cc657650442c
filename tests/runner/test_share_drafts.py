"""How the device gives a step's budget to drafts, against a list sorted one draft at a time."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from deepinfer.ops.decoding import share_drafts
from deepinfer.runner.rows import RowLimits, Rows, send
from deepinfer.scheduler.calibration import probability
from deepinfer.scheduler.speculation import share_budget_out
from deepinfer.step import StepPlan
from tests.runner.recorded import RecordedGraphs

CPU = torch.device("cpu")
MOST = 4
confidences = st.one_of(
    st.sampled_from([0.0, 1.0, -1.0, 50.0, -50.0, float("nan")]), st.floats(-6, 6, width=32)
)
items = st.lists(
    st.tuples(
        st.integers(40, 50),  # length; the limit is 50
        st.integers(0, MOST),  # drafts at hand
        st.integers(0, MOST),  # cap
        st.booleans(),  # ended
        st.lists(confidences, min_size=MOST, max_size=MOST),
    ),
    min_size=1,
    max_size=6,
)
temperatures = st.lists(st.sampled_from([0.25, 1.0, 3.0]), min_size=MOST, max_size=MOST)


def table(rows, budget, temperature=(1.0,) * MOST):
    made = Rows(RowLimits(rows=len(rows) + 1, tokens=64, pages=2, drafts=MOST), CPU)
    for row, (length, drafts, cap, ended, logits) in enumerate(rows, 1):
        made.length[row], made.drafts[row], made.cap[row] = length, drafts, cap
        made.ended[row] = ended
        made.confidence[row] = torch.tensor(logits)
    made.limit.fill_(50)
    plan = StepPlan(0, draft_budget=budget, draft_temperature=tuple(temperature))
    made.change(plan, send(made.changes(plan, ()), CPU))
    return made, torch.arange(1, len(rows) + 1)


def wanted(rows):
    return [
        0 if ended else max(min(cap, drafts, 50 - length - 1), 0)
        for length, drafts, cap, ended, _ in rows
    ]


@given(items, st.integers(0, 20), temperatures)
def test_the_budget_goes_to_the_likeliest_drafts_prefix_by_prefix(rows, budget, temperature):
    left = []
    for row, (count, (*_, logits)) in enumerate(zip(wanted(rows), rows, strict=True)):
        chance = torch.ones((), dtype=torch.float64)
        for depth in range(count):
            one = torch.tensor(logits[depth], dtype=torch.float32)
            if not (one.isnan() or one == 0):
                chance = chance * torch.sigmoid(one.to(torch.float64) / temperature[depth])
            left.append((-float(chance), row, depth))
    expected = [0] * len(rows)
    for _, row, depth in sorted(left)[:budget]:
        assert depth == expected[row]
        expected[row] += 1
    made, real = table(rows, budget, temperature)
    assert share_drafts(real, made).tolist() == expected
    padded = torch.cat((real, torch.zeros(3, dtype=torch.int64)))
    assert share_drafts(padded, made).tolist() == [*expected, 0, 0, 0]


@given(items, st.integers(0, 20))
def test_without_confidences_rows_in_order_take_what_they_can(rows, budget):
    rows = [(*row[:-1], [0.0] * MOST) for row in rows]
    made, real = table(rows, budget)
    expected = []
    for count in wanted(rows):
        expected.append(min(count, budget))
        budget -= expected[-1]
    assert share_drafts(real, made).tolist() == expected


@given(items, st.integers(0, 20), temperatures)
def test_planner_and_device_share_alike(rows, budget, temperature):
    """Where confidences tell drafts apart clearly; the last bits may differ."""
    logits = np.array([row[-1] for row in rows])
    logits[~np.isfinite(logits)] = 0
    right = probability(np.round(logits).astype(np.float64), np.array(temperature))
    right[np.round(logits) == 0] = 1
    worth = right.cumprod(axis=1).round(9)
    if len(np.unique(worth)) < worth.size:
        return
    rows = [(*row[:-1], list(values)) for row, values in zip(rows, np.round(logits), strict=True)]
    made, real = table(rows, budget, temperature)
    expected = share_budget_out(worth, np.array(wanted(rows)), budget)
    assert share_drafts(real, made).tolist() == expected.tolist()


def test_a_captured_share_follows_confidences_budget_and_temperatures():
    rows = [(10, 4, 4, False, [2.0, 2.0, 2.0, 2.0]), (10, 4, 4, False, [1.0, 9.0, 9.0, 9.0])]
    made, real = table(rows, 3)
    graph, found = RecordedGraphs().capture(lambda: share_drafts(real, made))
    graph.replay()
    assert found.tolist() == [2, 1]  # 0.88, 0.78, 0.68 against 0.73, 0.73, 0.73
    made.budget.fill_(6)
    made.confidence[1] = -3
    graph.replay()
    assert found.tolist() == [2, 4]
    made.temperature.copy_(torch.tensor([1, 1e9, 1e9, 1e9]))  # then a later draft is a coin toss
    made.confidence[1], made.confidence[2, 0] = 3, -3
    graph.replay()
    assert found.tolist() == [4, 2]


@pytest.mark.parametrize("rows", [0, 2])
def test_a_table_without_drafts_shares_none(rows):
    made = Rows(RowLimits(rows=3, tokens=64, pages=2, drafts=0), CPU)
    assert share_drafts(torch.arange(1, rows + 1), made).tolist() == [0] * rows


def test_temperatures_go_up_only_when_a_plan_says_them():
    made, _ = table([(10, 1, 1, False, [1.0] * MOST)], 0, (0.5, 1.25, 3.1, 4.7))
    assert made.temperature.tolist() == [0.5, 1.25, 3.1, 4.7]
    assert made.changes(StepPlan(1), ()) == {}
