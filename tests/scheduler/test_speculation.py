"""Budgets of drafts against brute force, and what is learned from results."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepinfer.scheduler import LATENCY, Drafting, Limits, Scheduler
from deepinfer.scheduler.calibration import probability
from deepinfer.scheduler.costs import CostCurve
from deepinfer.scheduler.shadow import DrafterSpec
from deepinfer.scheduler.speculation import Size, Speculation, every_option, share_budget_out
from deepinfer.step import FLAG_END, StepResult
from tests.scheduler.driver import LIMITS, Drive, naive, request, with_drafts

ADAPTIVE = Drafting(adaptive=True)


class Law(CostCurve):
    """A curve that is given."""

    def __init__(self, law):
        super().__init__()
        self.law = law

    def seconds(self, tokens):
        return np.array([self.law(int(n)) for n in tokens])


blocks = (
    st.integers(1, 3)
    .flatmap(
        lambda depths: st.lists(
            st.lists(st.floats(0, 1), min_size=depths, max_size=depths), min_size=1, max_size=4
        )
    )
    .map(lambda rows: np.cumprod(np.array(rows), axis=1))
)
laws = st.lists(st.floats(0.05, 3), min_size=60, max_size=60).map(
    lambda steps: np.cumsum([0.01, *steps])
)


def best_budget(worth, size, most, curve):
    """The budget with the most expected tokens a second, the smallest of equal ones."""
    options = every_option(worth, size, most)
    return int(options.budgets[np.argmax(options.expected / curve.seconds(options.tokens))])


def brute_force(worth, most, seconds):
    """The best expected tokens a second over every choice of prefixes."""
    depths = worth.shape[1]
    best = 0.0
    for lengths in itertools.product(range(depths + 1), repeat=len(worth)):
        if sum(lengths) <= most:
            expected = len(worth) + sum(
                row[:n].sum() for row, n in zip(worth, lengths, strict=True)
            )
            best = max(best, expected / seconds(sum(lengths)))
    return best


@given(blocks, laws, st.integers(0, 12), st.sampled_from([0, 0, 4, 6]), st.integers(0, 9))
def test_no_choice_of_prefixes_promises_more_tokens_a_second(worth, law, most, graph, prefill):
    size = Size(len(worth), 0 if graph else prefill, 0, graph)

    def seconds(drafts):
        return law[size._replace(drafts=drafts).tokens]

    budget = best_budget(worth, size, most, Law(lambda n: law[n]))
    assert 0 <= budget <= min(most, worth.size)
    shares = share_budget_out(worth, np.full(len(worth), worth.shape[1]), budget)
    assert shares.sum() == budget
    expected = len(worth) + sum(row[:n].sum() for row, n in zip(worth, shares, strict=True))
    assert expected / seconds(budget) >= brute_force(worth, most, seconds) * (1 - 1e-9)


@given(blocks, st.data(), st.integers(0, 14))
def test_shares_are_the_best_prefixes_and_ties_go_to_the_lower_row(worth, data, budget):
    worth = np.round(worth, 1)  # many are equal
    wanted = np.array([data.draw(st.integers(0, worth.shape[1])) for _ in worth])
    shares = share_budget_out(worth, wanted, budget)
    left = [(-worth[r, d], r, d) for r in range(len(worth)) for d in range(wanted[r])]
    naive_shares = np.zeros(len(worth), int)
    for _, row, depth in sorted(left)[:budget]:
        assert depth == naive_shares[row], "a prefix"
        naive_shares[row] += 1
    assert shares.tolist() == naive_shares.tolist()


def test_zero_drafts_when_they_cannot_pay_and_all_when_they_cost_nothing():
    worth = np.full((3, 4), 0.2).cumprod(axis=1)
    size = Size(3, 0, 0, 0)
    assert best_budget(worth, size, 12, Law(lambda n: n)) == 0
    assert best_budget(worth, size, 12, Law(lambda n: 1.0)) == 12
    # In a graph of four rows the places up to the next multiple of four cost nothing more.
    assert best_budget(worth, Size(3, 0, 0, 4), 12, Law(lambda n: 1 + 1e-3 * n)) in (4, 8, 12)


def limits(rows=4, drafts=3, drafting=ADAPTIVE):
    return Limits(
        num_pages=rows * 8,
        num_slots=rows,
        max_model_len=1000,
        max_num_batched_tokens=1024,
        max_num_seqs=rows,
        max_draft=drafts,
        drafting=drafting,
    )


def result(rows, verified, accepted, confidence, seconds=0.01, flags=0):
    count = len(rows)
    return StepResult(
        0,
        np.array(rows, np.int32),
        np.full(count, verified, np.int32),
        np.full(count, accepted, np.int32),
        np.zeros((count, 4), np.int32),
        np.full(count, flags, np.int32),
        np.broadcast_to(np.asarray(confidence, np.float32), (count, 3)).copy(),
        seconds=seconds,
    )


def told(seconds, acceptance, drafting=ADAPTIVE, steps=256):
    """What was learned from steps of all budgets with drafts of a known acceptance."""
    made = Speculation(limits(drafting=drafting))
    generator, rows = np.random.default_rng(1), [1, 2, 3, 4]
    live = np.ones(4, np.bool_)
    logit = np.log(acceptance / (1 - acceptance))
    for step in range(steps):
        level = step % 4
        right = generator.random((4, 3)) < acceptance
        accepted = np.minimum(np.cumprod(right, axis=1).sum(axis=1), level)
        size = Size(4, 0, 4 * level, 0)
        one = replace(
            result(rows, level, 0, logit, seconds(size.tokens)), accepted=accepted.astype(np.int32)
        )
        made.applied(one, live, size)
    return made


@pytest.mark.parametrize(
    ("price", "acceptance", "wanted"), [(0.0, 0.6, 12), (0.05, 0.9, 12), (1.0, 0.5, 0)]
)
def test_learned_costs_and_confidences_give_the_budget_that_pays(price, acceptance, wanted):
    made = told(lambda tokens: 0.1 * (1 + price * tokens), acceptance)
    rows, room = np.arange(1, 5), np.full(4, 100)
    assert made.budget(rows, lambda: room, 12, 0) == wanted
    assert made.budget(rows, lambda: room, 5, 0) == min(wanted, 5)
    assert made.budget(rows, lambda: np.array([0, 0, 1, 0]), 12, 0) == min(wanted, 1)
    assert told(lambda n: 0.1 * n, acceptance, Drafting()).budget(rows, lambda: room, 12, 0) == 12


def test_nothing_measured_means_all_drafts():
    made = Speculation(limits())
    assert made.budget(np.arange(1, 5), lambda: np.full(4, 9), 12, 0) == 12


@pytest.mark.parametrize(
    ("seconds", "wanted"),
    [
        (lambda n: 0.01, 12),
        (lambda n: 0.01 + 0.008 * n, 12),
        (lambda n: 0.01 * n**2, 0),
        (lambda n: 0.01 + 0.02 * (n > 9), 5),
        (lambda n: 0.01 + 0.01 * (n > 5) + 0.02 * (n > 15), 11),
    ],
)
def test_budgets_whose_time_is_unknown_are_tried_until_the_best_is_known(seconds, wanted):
    made = Speculation(limits())
    rows, room, live = np.arange(1, 5), np.full(4, 9), np.ones(4, np.bool_)
    planned = []
    for _ in range(400):
        planned.append(made.budget(rows, lambda: room, 12, 0))
        size = Size(4, 0, planned[-1], 0)
        made.applied(result(rows, 0, 0, 9.0, seconds(size.tokens)), live, size)
    assert planned[300:].count(wanted) >= 97  # the others are timed again, now and then


def test_many_rows_keep_their_tokens_for_a_few_plans_and_no_more_than_they_can_verify():
    known = told(lambda n: 0.1 * (1 + 0.02 * n), 0.7)
    wide = Speculation(limits(rows=64, drafts=3))
    wide.plain, wide.calibration = known.plain, known.calibration
    every, left = np.arange(1, 65), {"room": 99}

    def budget(rows):
        return wide.budget(every[:rows], lambda: np.full(rows, left["room"]), 192, 0)

    first = budget(64)
    assert [budget(63), budget(62)] == [first + 1, first + 2]
    assert 0 < first < 190
    budget(64)
    left["room"] = 0
    assert budget(64) > 0  # those that ended since it was chosen have no drafts, the device knows
    assert [budget(64) for _ in range(8)][-1] == 0


def test_confidences_that_are_not_numbers_count_as_the_average():
    made = told(lambda n: 0.1, 0.8)
    nan = made.survival(np.full((1, 3), np.nan, np.float32))
    zero = made.survival(np.zeros((1, 3), np.float32))
    assert np.array_equal(nan, zero)
    assert np.allclose(nan, [[0.8, 0.64, 0.512]], atol=0.1)


def test_counts_by_place_leave_out_what_ended_requests_had_on_their_way():
    made = Speculation(limits(drafting=Drafting()))
    rows, live = [1, 2, 3, 4], np.array([True, True, True, False])
    made.planned(12)
    made.applied(result(rows, 3, 2, 1.0), live, Size(4, 0, 12, 0))
    made.planned(4)
    made.applied(result(rows, 1, 1, 1.0, flags=FLAG_END), live, Size(4, 0, 4, 0))
    counts = made.counts()
    assert counts.drafts_scheduled == 16
    assert (counts.drafts_verified, counts.drafts_accepted) == (12, 9)
    assert counts.drafts_verified_at == (6, 3, 3)
    assert counts.drafts_accepted_at == (6, 3, 0)
    assert counts.mean_accepted_length == 2.5
    none = (0, 0, 0)
    wanted = [((2, 1, 1), (2, 1, 0)), (none, none), (none, none), (none, none)]
    assert [made.take(row) for row in (1, 1, 4, 0)] == wanted
    assert made.counts() == counts


def test_the_device_is_told_temperatures_once_when_they_change():
    made = told(lambda n: 0.1, 0.9, steps=40)
    assert made.planned(0) == ()
    rows, live = [1, 2, 3, 4], np.ones(4, np.bool_)
    for step in range(64):  # confident, and right every other time
        made.applied(result(rows, 3, 3 * (step % 2), 4.0), live, Size(4, 0, 12, 0))
    news = made.planned(0)
    assert len(news) == 3
    assert news[0] > 1.5
    assert made.planned(0) == ()
    assert Speculation(limits(drafting=Drafting(True, (2.0, 3.0)))).planned(0) == (2, 3, 3)
    assert Speculation(limits(drafts=0)).planned(0) == ()


@pytest.mark.parametrize("overlap", [False, True])
def test_adaptive_budgets_change_no_token_and_are_not_all_alike(overlap):
    asked = [request(name, [name + 1, 5, 9], 30) for name in range(7)]
    wanted = {one.request_id: naive(one, 60) for one in asked}
    room = replace(
        with_drafts(3, LIMITS), max_num_batched_tokens=40, num_pages=80, drafting=ADAPTIVE
    )
    drive = Drive(room, drafter=DrafterSpec(50, confident=True), overlap=overlap)
    for one in asked:
        drive.add(one)
    drive.run()
    assert {name: drive.outcome(name) for name in wanted} == wanted
    assert len({plan.draft_budget for plan in drive.plans}) > 4
    counters = drive.scheduler.snapshot()
    assert counters.drafts_verified <= counters.drafts_scheduled
    for one in asked:
        metrics = drive.last[one.request_id].metrics
        assert metrics is not None
        assert 0 < metrics.drafts_accepted < metrics.drafts_verified
    every = [drive.last[one.request_id].metrics for one in asked]
    assert sum(m.drafts_verified for m in every if m) == counters.drafts_verified
    assert sum(m.drafts_accepted for m in every if m) == counters.drafts_accepted


def test_better_confidences_get_more_drafts_accepted_for_the_same_budget():
    def accepted(confident):
        room = replace(with_drafts(3, LIMITS), max_num_batched_tokens=10, num_pages=80)
        drive = Drive(room, LATENCY, drafter=DrafterSpec(50, confident=confident))
        for name in range(12):
            drive.add(request(name, [name + 1], 40))
        drive.run()
        counters = drive.scheduler.snapshot()
        return counters.drafts_accepted / counters.drafts_verified

    assert accepted(True) > 1.2 * accepted(False)


def test_plans_do_not_depend_on_being_watched():
    def plans(watched):
        drive = Drive(
            replace(with_drafts(3), drafting=ADAPTIVE), drafter=DrafterSpec(60, False, True)
        )
        for name in range(20):
            drive.add(request(name, [name + 1, 2], 25))
        while not drive.scheduler.idle:
            drive.step()
            if watched:
                drive.scheduler.snapshot()
        return drive.plans

    assert plans(True) == plans(False)


def test_a_scheduler_without_speculation_plans_and_counts_no_drafts():
    counters = Scheduler(LIMITS, LATENCY).snapshot()
    assert counters.drafts_verified_at == ()
    assert counters.mean_accepted_length == 0


def rate(rows, acceptance, fixed):
    """Tokens a second of a made-up device whose confidences are 1.7 times too large."""
    made = Speculation(limits(rows, drafts=5, drafting=Drafting(adaptive=fixed is None)))
    generator, live = np.random.default_rng(0), np.ones(rows, np.bool_)
    every, room, temperature = np.arange(1, rows + 1), np.full(rows, 99), np.ones(5)
    centre = 1.25 * np.log(acceptance / (1 - acceptance))
    waiting: list[tuple[StepResult, Size]] = []
    logits, tokens, time = generator.normal(centre, 1.2, (rows, 5)), 0.0, 0.0
    for step in range(500):
        budget = made.budget(every, lambda: room, 5 * rows, 0) if fixed is None else fixed * rows
        temperature = np.array(made.planned(budget) or temperature)
        size = Size(rows, 0, budget, 0)
        told = (1.7 * logits).astype(np.float32)
        cap = np.full(rows, 5 if fixed is None else fixed)
        shares = share_budget_out(probability(told, temperature).cumprod(axis=1), cap, budget)
        right = generator.random((rows, 5)) < probability(logits, np.ones(5))
        accepted = np.minimum(np.cumprod(right, axis=1).sum(axis=1), shares)
        seconds = 4e-3 + 1.5e-3 * (-(-size.tokens // 64))
        if step >= 200:
            tokens, time = tokens + rows + accepted.sum(), time + seconds
        logits = generator.normal(centre, 1.2, (rows, 5))
        one = result(every, 0, 0, 0.0, seconds)
        waiting.append((
            replace(one, verified=shares.astype(np.int32), accepted=accepted.astype(np.int32),
                    confidence=(1.7 * logits).astype(np.float32)), size))  # fmt: skip
        if step:  # one step is uncollected when the next is planned
            done, of = waiting.pop(0)
            made.applied(done, live, of)
    return tokens / time


@pytest.mark.parametrize(("rows", "acceptance"), [(4, 0.9), (16, 0.5), (64, 0.75), (128, 0.5)])
def test_adaptive_drafts_are_as_fast_as_the_best_fixed_number_of_them(rows, acceptance):
    best = max(rate(rows, acceptance, fixed) for fixed in range(6))
    assert rate(rows, acceptance, None) >= 0.97 * best
