from dataclasses import replace
from itertools import product

import pytest

from deepinfer.errors import ConfigError
from deepinfer.scheduler import LATENCY, POLICIES, THROUGHPUT, Limits
from deepinfer.scheduler.policy import (
    Candidate,
    Shares,
    Waiting,
    admit_order,
    choose_victim,
    share_budget,
)

SMALL = replace(LATENCY, prefill_floor=1, prefill_beside_decode=2, slice_tokens=1, draft_tokens=2)
PATIENT = replace(LATENCY, prefill_floor=9, prefill_beside_decode=9, slice_tokens=9, draft_tokens=1)


def share_token_by_token(decoding, drafts, prefill, budget, policy):
    """The rule of `share_budget`, one token at a time."""
    left = budget - decoding
    given = 0
    while given < min(drafts, policy.draft_tokens):
        for_prompts = min(left - given - 1, sum(prefill))
        if left - given == 0 or for_prompts < min(policy.prefill_floor, sum(prefill), left):
            break
        given += 1
    room = left - given
    if decoding and room > policy.prefill_beside_decode:
        room = policy.prefill_beside_decode
    lengths = [0] * len(prefill)
    for most in (policy.slice_tokens, 1 << 40):
        for place, wanted in enumerate(prefill):
            while room and lengths[place] < min(wanted, most):
                lengths[place] += 1
                room -= 1
    return Shares(given, tuple(lengths))


@pytest.mark.parametrize("policy", [SMALL, PATIENT])
def test_share_budget_is_its_rule_in_every_small_case(policy):
    wants = [(), *product((1, 3), repeat=1), *product((1, 2, 4), repeat=3)]
    for decoding, drafts, prefill in product(range(3), range(4), wants):
        for budget in range(decoding, 9):
            shares = share_budget(decoding, drafts, prefill, budget, policy)
            case = (decoding, drafts, prefill, budget)
            assert shares == share_token_by_token(*case, policy), case
            assert decoding + shares.drafts + sum(shares.prefill) <= budget


def test_a_step_without_decoding_rows_gives_prompts_the_whole_budget():
    for policy in POLICIES.values():
        assert share_budget(0, 0, [9000], 8192, policy) == Shares(0, (8192,))


def test_latency_bounds_prompts_beside_decoding_and_throughput_does_not():
    assert share_budget(64, 192, [9000], 8192, LATENCY) == Shares(192, (1024,))
    assert share_budget(64, 192, [9000], 8192, THROUGHPUT) == Shares(0, (8128,))
    assert share_budget(64, 192, [100], 8192, THROUGHPUT) == Shares(128, (100,))


def test_a_short_prompt_shares_the_step_with_a_long_one():
    assert share_budget(1, 0, [9000, 300], 8192, LATENCY).prefill == (724, 300)


def victim_by_elimination(candidates):
    left = [c for c in candidates if c.priority == max(c.priority for c in candidates)]
    left = [c for c in left if c.recompute == min(c.recompute for c in left)]
    return next(c for c in left if c.arrival == max(c.arrival for c in left))


def test_choose_victim_is_its_rule_in_every_small_case():
    kinds = list(product((-1, 0, 1), (5, 6)))
    for count in (1, 2, 3):
        for chosen in product(kinds, repeat=count):
            candidates = [Candidate(9 - i, *kind, arrival=i) for i, kind in enumerate(chosen)]
            for order in (candidates, candidates[::-1]):
                assert choose_victim(order) == victim_by_elimination(candidates)


def test_the_queue_goes_aged_then_by_priority_then_resumed_then_in_order_of_arrival():
    late, low, first, second = (
        Waiting("late", 0, 1, False),
        Waiting("low", 5, 2, False),
        Waiting("first", 0, 7, False),
        Waiting("second", 0, 8, False),
    )
    again, again_later = Waiting("again", 0, 9, True), Waiting("again later", 0, 10, True)
    urgent = Waiting("urgent", -1, 11, False)
    fresh = [[late, first, second], [low], [urgent]]
    order = [waiting.request_id for waiting in admit_order([again, again_later], fresh, 3)]
    assert order == ["late", "low", "urgent", "again later", "again", "first", "second"]


GOOD = Limits(num_pages=4, num_slots=4, max_model_len=64, max_num_batched_tokens=8, max_num_seqs=4)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"num_pages": 0}, "num_pages 0: use at least 1"),
        ({"max_draft": -1}, "max_draft -1: use at least 0"),
        ({"max_model_len": 1}, "max_model_len 1: use at least 2"),
        ({"num_slots": 3}, "max_num_seqs 4 exceeds the 3 slots"),
        ({"max_num_batched_tokens": 3}, "max_num_batched_tokens 3: use at least max_num_seqs"),
        ({"decoder_keep": 0}, "decoder_keep 0: use at least 1"),
        ({"graph_sizes": (4, 2)}, "ascending"),
        ({"graph_sizes": (0, 2)}, "ascending"),
    ],
)
def test_limits_that_contradict_themselves_are_refused_with_the_value(change, words):
    with pytest.raises(ConfigError, match=words):
        replace(GOOD, **change)
