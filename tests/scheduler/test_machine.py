"""Any order of additions, ends, plans and results keeps the promises of the scheduler."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from deepinfer.scheduler import LATENCY, POLICIES, THROUGHPUT, Caching, Drafting, Limits
from deepinfer.scheduler.shadow import DrafterSpec
from tests.scheduler.driver import END, VOCABULARY, Drive, naive, request

# Many prompts begin alike, so that pages are shared.
PREFIXES = [[], [7] * 24, list(range(1, 17)), [*range(1, 9), *[5] * 13]]
prompts = st.builds(
    lambda prefix, count, rest: [*prefix[:count], *rest],
    st.sampled_from(PREFIXES),
    st.integers(0, 24),
    st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=6),
)
cachings = st.one_of(
    st.none(),
    st.builds(
        Caching,
        first_key=st.just(b"first"),
        replay=st.sampled_from([6, 7, 12]),
        exact=st.booleans(),
        snapshots=st.integers(0, 2),
        ttl=st.sampled_from([3.0, 1e9]),
    ),
)
drafters = st.builds(
    DrafterSpec,
    right_percent=st.sampled_from([0, 40, 80, 100]),
    ragged=st.booleans(),
    confident=st.booleans(),
    seed=st.integers(0, 9),
)


draftings = st.builds(
    Drafting, adaptive=st.booleans(), temperature=st.sampled_from([1.0, (0.5, 2.0)])
)


@st.composite
def limits(draw):
    seqs = draw(st.integers(1, 4))
    return Limits(
        num_pages=draw(st.integers(10, 24)),
        num_slots=seqs + draw(st.integers(0, 2)),
        max_model_len=40,
        max_num_batched_tokens=seqs + draw(st.integers(0, 20)),
        max_num_seqs=seqs,
        max_draft=draw(st.integers(0, 3)),
        drafting=draw(draftings),
        page_tokens=4,
        decoder_keep=draw(st.sampled_from([None, 6])),
        caching=draw(cachings),
    )


@st.composite
def requests(draw, name):
    stops = draw(st.sampled_from([(), (END,), (END, 3, 5)]))
    max_tokens = draw(st.integers(1, 25))
    return request(
        name,
        draw(prompts),
        max_tokens,
        stops=stops,
        min_tokens=draw(st.integers(0, min(max_tokens, 4))),
        priority=draw(st.integers(-1, 1)),
        constrained=draw(st.booleans()),
    )


class SchedulerMachine(RuleBasedStateMachine):
    """Zero or one step stays uncollected while the next is planned, as the rules fall."""

    @initialize(
        limits=limits(),
        policy=st.sampled_from(sorted(POLICIES)),
        drafter=drafters,
        late=st.sampled_from([0, 0, 30, 70]),
        nan=st.sets(st.tuples(st.integers(0, 12), st.integers(1, 30)), max_size=6),
    )
    def start(self, limits, policy, drafter, late, nan):
        self.drive = Drive(limits, POLICIES[policy], drafter=drafter, nan_at=nan, late=late)
        self.nan = nan
        self.asked = {}
        self.ended = {}

    @rule(data=st.data())
    def add(self, data):
        asked = data.draw(requests(len(self.asked)))
        self.asked[asked.request_id] = asked
        self.drive.add(asked)

    @precondition(lambda self: self.asked)
    @rule(data=st.data(), reason=st.sampled_from(["abort", "stop"]))
    def end_from_outside(self, data, reason):
        name = data.draw(st.sampled_from(sorted(self.asked)))
        live = name not in self.drive.last and name not in self.ended
        before = self.drive.scheduler.snapshot()
        assert self.drive.scheduler.finish(name, reason) == live
        if live:
            self.ended[name] = reason
            after = self.drive.scheduler.snapshot()
            assert after.finished == before.finished + 1
            assert after.uncollected or not after.draining

    @precondition(lambda self: len(self.drive.uncollected) < 2)
    @rule()
    def plan(self):
        self.drive.plan()

    @precondition(lambda self: self.drive.uncollected)
    @rule()
    def collect(self):
        self.drive.collect()

    @rule(turns=st.integers(1, 12))
    def turn(self, turns):
        for _ in range(turns):
            if len(self.drive.uncollected) < 2:
                self.drive.step()

    @rule()
    def reset(self):
        self.drive.scheduler.reset_prefix_cache()
        assert self.drive.scheduler.snapshot().pages_cached == 0

    @rule()
    def hear(self):
        self.drive.hear(self.drive.scheduler.take_reports())

    @invariant()
    def invariants_hold(self):
        if hasattr(self, "drive"):
            self.drive.check()
            snapshot = self.drive.scheduler.snapshot()
            assert snapshot.pages_used + snapshot.pages_free == self.drive.limits.num_pages
            assert snapshot.drafts_accepted <= snapshot.drafts_verified
            assert snapshot.drafts_verified <= snapshot.drafts_scheduled
            running = snapshot.prefilling + snapshot.decoding
            assert running <= self.drive.limits.max_num_seqs
            assert running + snapshot.draining <= self.drive.limits.num_slots

    def teardown(self):
        if not hasattr(self, "drive"):
            return
        while len(self.drive.uncollected) > 1:
            self.drive.collect()
        tokens = sum(len(a.prompt_token_ids) + a.params.max_tokens for a in self.asked.values())
        # Some row advances in every second turn, and at worst every request is once the victim of
        # every other one.
        self.drive.late = min(self.drive.late, 30)
        self.drive.run(bound=4 * tokens * (1 + len(self.asked)) + 40)
        assert set(self.drive.last) == set(self.asked)
        for name, asked in self.asked.items():
            got, reason, stop_id = self.drive.outcome(name)
            tokens, wanted, wanted_id = naive(asked, self.drive.limits.max_model_len, self.nan)
            if name in self.ended:
                assert (reason, stop_id) == (self.ended[name], None)
                assert got == tokens[: len(got)]
            elif wanted == "error":
                # What was generated in the very step of the fault is lost with it.
                assert reason == "error"
                assert got == tokens[: len(got)]
                assert len(tokens) - len(got) <= self.drive.limits.max_draft
            else:
                assert (got, reason, stop_id) == (tokens, wanted, wanted_id)


def test_any_order_of_events_keeps_every_promise():
    run_state_machine_as_test(
        SchedulerMachine, settings=settings(max_examples=60, stateful_step_count=40)
    )


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_any_order_of_events_keeps_every_promise_at_length():
    run_state_machine_as_test(
        SchedulerMachine, settings=settings(max_examples=2000, stateful_step_count=60)
    )


def _same_tokens(asked, room, drafter):
    plain = Limits(
        num_pages=200,
        num_slots=12,
        max_model_len=40,
        max_num_batched_tokens=500,
        max_num_seqs=12,
        page_tokens=4,
    )
    wanted = {one.request_id: naive(one, 40) for one in asked}
    for limit, policy, overlap, late in [
        (plain, THROUGHPUT, False, 0),
        (room, LATENCY, False, 0),
        (room, LATENCY, True, 40),
        (room, THROUGHPUT, True, 0),
    ]:
        drive = Drive(limit, policy, drafter=drafter, overlap=overlap, late=late)
        for one in asked:
            drive.add(one)
        drive.run()
        assert {name: drive.outcome(name) for name in wanted} == wanted


workloads = st.integers(1, 8).flatmap(lambda n: st.tuples(*(requests(i) for i in range(n))))


@given(workloads, limits(), drafters)
def test_overlap_pages_budget_policy_drafts_and_late_masks_change_no_token(asked, room, drafter):
    _same_tokens(asked, room, drafter)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@settings(max_examples=2000)
@given(workloads, limits(), drafters)
def test_overlap_pages_budget_policy_drafts_and_late_masks_change_no_token_at_length(
    asked, room, drafter
):
    _same_tokens(asked, room, drafter)
