"""The shadow device is only worth something if broken plans do not pass it."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepinfer.scheduler import ShadowDevice, next_token
from deepinfer.scheduler.shadow import DrafterSpec
from deepinfer.step import (
    FLAG_LIMIT,
    Admit,
    DraftCap,
    PageAppend,
    Prefill,
    RowSampling,
    StepPlan,
)
from tests.scheduler.driver import LIMITS, Drive, request, with_drafts


def admit(row, ids, *, limit=40, slot=None):
    slot = row if slot is None else slot
    return Admit(row, slot, tuple(ids), len(ids), 0, 0, 0, limit, -1, (), 9, 0, RowSampling())


FIRST = StepPlan(
    number=0,
    admit=(admit(1, [5, 6, 7]), admit(2, [8] * 6)),
    pages=(PageAppend(1, 0, 3), PageAppend(2, 0, 4), PageAppend(2, 1, 5)),
    prefill=(Prefill(1, 0, 3, True), Prefill(2, 0, 4, False)),
    max_len_hi=4,
)
SECOND = StepPlan(number=1, decode_add=(1,), prefill=(Prefill(2, 4, 2, True),), max_len_hi=7)


def compute(device, plan):
    device.forward(plan)
    device.sample(plan.number)
    device.draft(plan.number)


def compute_all(device, plans):
    for plan in plans:
        compute(device, plan)


def test_the_hand_made_steps_generate_the_hash_of_the_prefix():
    device = ShadowDevice(LIMITS)
    compute_all(device, (FIRST, SECOND))
    first, second = device.collect(0), device.collect(1)
    token = next_token([5, 6, 7], 9)
    assert first.tokens.tolist() == [[token]]
    assert second.row.tolist() == [2, 1]  # prompts in plan order, then decoding rows
    assert second.tokens.tolist() == [[next_token([8] * 6, 9)], [next_token([5, 6, 7, token], 9)]]


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        ({}, {"number": 2}, "step 2 comes after 0"),
        ({}, {"max_len_hi": 6}, "row 2 has 7 > 6 tokens"),
        ({}, {"prefill": (Prefill(2, 3, 3, True),)}, "row 2 is computed to 4, not 3"),
        ({}, {"prefill": (Prefill(2, 5, 1, True),)}, "row 2 is computed to 4, not 5"),
        ({}, {"prefill": (Prefill(2, 4, 3, True),)}, "row 2: slice of 3 tokens"),
        ({}, {"prefill": (Prefill(2, 4, 2, False),)}, "row 2: emits=False"),
        ({}, {"prefill": (Prefill(2, 4, 1, True),)}, "row 2: emits=True"),
        ({}, {"prefill": (Prefill(1, 3, 1, True),)}, "row 1 prefills and decodes in one step"),
        ({}, {"decode_add": (1, 2)}, "row 2 decodes before its prompt is computed"),
        ({}, {"decode_remove": (1,)}, r"\(1,\)"),
        ({}, {"pages": (PageAppend(1, 1, 4),)}, "page 4 is written by row 1 and another"),
        ({}, {"pages": (PageAppend(1, 2, 6),)}, "row 1: entry 2"),
        ({}, {"pages": (PageAppend(1, 1, 0),)}, "page 0"),
        ({}, {"pages": (PageAppend(1, 1, 17),)}, "page 17"),
        ({}, {"admit": (admit(1, [1]),)}, "row 1 is taken"),
        ({}, {"admit": (admit(0, [1]),)}, "row 0"),
        ({}, {"admit": (admit(3, [1], slot=0),)}, "slot 0"),
        ({}, {"admit": (admit(3, [1], slot=2),)}, "2"),
        ({}, {"draft_budget": 14}, "step 1 exceeds 16 tokens"),
        ({}, {"masked": (1,)}, "masks are missing"),
        ({"pages": FIRST.pages[:2]}, {}, "row 2 owns no page of 4"),
        ({"pages": FIRST.pages[1:]}, {}, "row 1 owns no page of 0"),
    ],
)
def test_a_broken_plan_does_not_pass(first, second, words):
    device = ShadowDevice(LIMITS)
    plans = [replace(FIRST, **first), replace(SECOND, **second)]
    with pytest.raises(AssertionError, match=words):
        compute_all(device, plans)


def test_a_released_page_is_poisoned_and_poison_is_not_read():
    device = ShadowDevice(LIMITS)
    fresh = device._pages.copy()
    compute(device, FIRST)
    assert not np.array_equal(device._pages[4], fresh[4])
    device._pages[4] = fresh[4]
    with pytest.raises(AssertionError, match="row 2 reads position 3, never written"):
        compute(device, SECOND)
    device = ShadowDevice(LIMITS)
    compute(device, FIRST)
    compute(device, StepPlan(number=1, release=(1, 2)))
    np.testing.assert_array_equal(device._pages, fresh)


def test_a_third_step_needs_the_first_to_be_collected():
    device = ShadowDevice(LIMITS)
    compute_all(device, (FIRST, SECOND))
    with pytest.raises(AssertionError, match="more than one step is uncollected"):
        compute(device, StepPlan(number=2, max_len_hi=9))
    with pytest.raises(AssertionError, match="step 0 comes first"):
        device.collect(1)


def test_rows_share_the_draft_budget_in_ascending_order_within_cap_drafts_and_limit():
    limits = with_drafts(3, replace(LIMITS, max_num_batched_tokens=40))
    device = ShadowDevice(limits, drafter=DrafterSpec(right_percent=100))
    rows = range(1, 5)
    ends = {1: 5, 2: 30, 3: 30, 4: 30}
    compute(
        device,
        StepPlan(
            number=0,
            admit=tuple(admit(row, [row, row], limit=ends[row]) for row in rows),
            pages=tuple(PageAppend(row, i, 2 * row + i) for row in rows for i in range(2)),
            prefill=tuple(Prefill(row, 0, 2, True) for row in rows),
            max_len_hi=3,
        ),
    )
    device.collect(0)
    caps = tuple(DraftCap(row, cap) for row, cap in zip(rows, (3, 2, 3, 3), strict=True))
    plan = StepPlan(number=1, decode_add=(4, 2, 3, 1), draft_cap=caps, draft_budget=5, max_len_hi=7)
    compute(device, plan)
    result = device.collect(1)
    assert result.row.tolist() == [1, 2, 3, 4]
    assert result.verified.tolist() == [1, 2, 2, 0]  # limit, cap, budget, nothing left
    assert result.accepted.tolist() == [1, 2, 2, 0]
    assert result.generated.tolist() == [2, 3, 3, 1]
    assert result.flags.tolist() == [FLAG_LIMIT, 0, 0, 0]


@pytest.mark.parametrize(("percent", "seed"), [(0, 1), (50, 2), (80, 3), (100, 4)])
def test_the_drafter_is_right_about_as_often_as_it_is_told(percent, seed):
    limits = with_drafts(2, replace(LIMITS, num_pages=400, max_model_len=600))
    drive = Drive(limits, drafter=DrafterSpec(percent, seed=seed))
    for name in range(2):
        drive.add(request(name, [1], 500, seed=seed * 2 + name))
    drive.run()
    snapshot = drive.scheduler.snapshot()
    p = percent / 100
    wanted = p + p * p  # of two drafts, the second counts only after the first
    steps = snapshot.drafts_verified / 2
    assert abs(snapshot.drafts_accepted / steps - wanted) < 5 / np.sqrt(steps)


@given(st.lists(st.integers(0, 256), min_size=1, max_size=8), st.integers(-(2**63), 2**64 - 1))
def test_the_next_token_depends_on_every_token_and_on_the_seed(prefix, seed):
    def draw(prefix, seed):
        return next_token(prefix, seed, vocabulary=1 << 60)

    token = draw(prefix, seed)
    assert token != draw(prefix, seed ^ 1)
    for place in range(len(prefix)):
        assert token != draw([t + (i == place) for i, t in enumerate(prefix)], seed)
    assert next_token(prefix, seed, barred={next_token(prefix, seed)}) != next_token(prefix, seed)
