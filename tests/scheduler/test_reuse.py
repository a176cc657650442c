"""What later requests take over from earlier ones, seen in plans."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepinfer.scheduler import LATENCY, Caching
from tests.scheduler.driver import LIMITS, Drive, naive, request

EXACT = Caching(first_key=b"exact", replay=8)
BOUNDED = Caching(first_key=b"bounded", replay=6, exact=False)
KEPT = Caching(first_key=b"exact", replay=1000, snapshots=3)
LONG = tuple(range(1, 23)) * 2  # 44 tokens, 11 pages of 4


def drive(caching, *, keep=None, **changes):
    limits = replace(
        LIMITS,
        caching=caching,
        decoder_keep=keep,
        num_pages=60,
        max_num_batched_tokens=64,
        **changes,
    )
    return Drive(limits, overlap=False)


def served(d, name, prompt, max_tokens=3, **options):
    """Serve one request alone; returns what its row was told."""
    d.add(request(name, prompt, max_tokens, **options))
    before = len(d.plans)
    d.run()
    admits = [a for plan in d.plans[before:] for a in plan.admit]
    assert d.outcome(name) == naive(request(name, prompt, max_tokens, **options), 60)
    return admits[0]


def test_the_second_of_two_equal_prompts_replays_what_its_windows_need():
    d = drive(EXACT)
    first, second = served(d, 1, LONG), served(d, 2, LONG)
    assert (first.cached, first.encoder_start) == (0, 0)
    # All full pages but the one of the last token, less the replay, from a page border on.
    assert (second.cached, second.encoder_start) == (40, 32)
    assert d.last["2"].num_cached_tokens == 32
    assert d.last["1"].num_cached_tokens == 0


def test_with_a_decoder_start_the_replay_reaches_back_from_it():
    d = drive(EXACT, keep=10)
    served(d, 1, LONG)
    second = served(d, 2, LONG)
    assert (second.cached, second.decoder_start, second.encoder_start) == (40, 34, 24)


def test_a_bounded_hit_replays_its_rows_and_no_hit_is_shorter_than_that():
    d = drive(BOUNDED, keep=6)
    served(d, 1, LONG)
    assert served(d, 2, LONG)[4:6] == (40, 34)
    assert served(d, 3, LONG[:7])[4:6] == (0, 0)


def test_a_snapshot_saves_the_replay_and_stops_at_the_decoder_start():
    d = drive(KEPT, keep=6)
    served(d, 1, LONG)
    saves = [save for plan in d.plans for save in plan.snapshots]
    assert saves[0].end == 36  # the last page border at or before 44 - 6
    second = served(d, 2, LONG)
    assert (second.cached, second.encoder_start) == (36, 36)
    assert second.snapshot == saves[0].place


def test_a_snapshot_expires():
    d = drive(replace(KEPT, ttl=2.0), keep=6)
    served(d, 1, LONG)
    for name in range(10, 16):
        served(d, name, [3, name])
    assert served(d, 2, LONG).snapshot == 0


def test_the_output_of_a_turn_is_found_by_the_next_turn():
    d = drive(KEPT, keep=6)
    served(d, 1, LONG[:21], 20)
    turn = [*LONG[:21], *d.tokens["1"], 9, 9, 9, 9, 9, 9]
    second = served(d, 2, turn)
    assert second.cached == second.encoder_start == 40
    assert second.snapshot > 0


def test_equal_prompts_that_come_together_share_the_pages_of_the_first():
    d = drive(EXACT)
    for name in range(3):
        d.add(request(name, LONG, 2))
    first = d.compute()
    assert [a.row for a in first.admit] == [1]
    second = d.compute()
    assert [a.cached for a in second.admit] == [40, 40]
    pages = {(p.place, p.page) for p in first.pages if p.place < 10}
    for row in (2, 3):
        assert {(p.place, p.page) for p in second.pages if p.row == row and p.place < 10} == pages
    d.run()


def test_whoever_has_another_salt_shares_nothing():
    d = drive(EXACT)
    salted = replace(request(1, LONG, 3), cache_salt=b"mine")
    d.add(salted)
    d.run()
    assert served(d, 2, LONG).cached == 0
    d.add(replace(request(3, LONG, 3), cache_salt=b"mine"))
    d.run()
    assert d.plans[-3].admit[0].cached == 40


def test_scored_prompts_neither_take_nor_give():
    d = drive(EXACT)
    scored = request(1, LONG, 2)
    scored = replace(scored, params=replace(scored.params, prompt_logprobs=0))
    d.add(scored)
    d.run()
    assert served(d, 2, LONG).cached == 0
    d.add(replace(scored, request_id="3"))
    d.run()
    assert d.last["3"].num_cached_tokens == 0


def test_pages_that_nobody_owns_make_room_for_new_ones_oldest_first():
    d = drive(EXACT, num_slots=4)
    d.limits = replace(d.limits)
    for name in range(8):
        served(d, name, [name, *LONG])
    cached = [served(d, 100 + name, [name, *LONG]).cached for name in (7, 6, 0)]
    assert cached[:2] == [44, 44]
    assert cached[2] == 0
    assert d.scheduler.snapshot().pages_used == 0


def test_reset_forgets_pages_and_snapshots_and_running_rows_go_on():
    d = drive(KEPT, keep=6)
    served(d, 1, LONG)
    d.add(request(2, LONG, 9))
    d.compute()
    d.scheduler.reset_prefix_cache()
    d.run()
    assert d.outcome(2) == naive(request(2, LONG, 9), 60)
    third = served(d, 3, LONG)
    assert third.snapshot == 0


def test_a_preempted_request_finds_its_own_pages_again():
    d = drive(EXACT, num_slots=4)
    d.add(request(1, LONG, 12))
    d.add(request(2, [5], 12, priority=-1))
    for _ in range(4):
        d.compute()
    d.scheduler._preempt()
    before = len(d.plans)
    d.run()
    again = d.plans[before].admit[0]
    assert again.cached == 44  # the pages of its prompt and of its first outputs
    assert d.outcome(1) == naive(request(1, LONG, 12), 60)


def test_pages_of_a_row_that_is_not_finite_are_not_found():
    limits = replace(LIMITS, caching=EXACT, num_pages=60, max_num_batched_tokens=64)
    d = Drive(limits, nan_at={(1, 44)}, overlap=False)
    d.add(request(1, LONG, 3))
    d.run()
    assert d.last["1"].finish_reason == "error"
    assert served(d, 2, LONG).cached == 0


@pytest.mark.parametrize("policy", [LATENCY])
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 44)), min_size=1, max_size=6))
def test_hits_are_those_of_a_cache_that_forgets_nothing(policy, prompts):
    d = drive(replace(EXACT, replay=0), num_slots=4)
    seen: set[tuple[int, ...]] = set()
    for name, (head, count) in enumerate(prompts):
        prompt = (head, *LONG)[:count]
        full = 0
        while full + 4 < len(prompt) and prompt[: full + 4] in seen:
            full += 4
        if d.scheduler.snapshot().pages_cached < 40:
            assert served(d, name, prompt).cached == full
        else:
            served(d, name, prompt)
        known = (*prompt, *d.tokens[str(name)])[:-1]
        seen |= {known[: 4 * (i + 1)] for i in range(len(known) // 4)}
