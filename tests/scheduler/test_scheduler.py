from dataclasses import replace

import pytest

from deepinfer.errors import RequestError
from deepinfer.request import Request, SamplingParams
from deepinfer.scheduler import LATENCY, THROUGHPUT, Limits, Scheduler, row_sampling
from deepinfer.scheduler.limits import PASSED_OVER_LIMIT
from deepinfer.scheduler.shadow import DrafterSpec
from deepinfer.step import DraftCap, Prefill, RowSampling
from tests.scheduler.driver import END, LIMITS, Drive, naive, request, with_drafts


def test_nothing_to_do_is_said_with_none():
    scheduler = Scheduler(LIMITS, LATENCY)
    assert scheduler.plan(0.0) is None
    assert scheduler.idle


# Refusals.


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "words"),
    [
        ([], 1, "the prompt is empty"),
        ([1] * 60, 1, r"60 tokens, .* may have 60; shorten it to 59 tokens"),
        ([1] * 59, 1, r"60 tokens need 15 pages of 4 tokens, 12 are available.* to 49 tokens"),
        ([1] * 20, 30, r"50 tokens need 13 pages of 4 tokens, 12 are available"),
    ],
)
def test_what_can_never_fit_is_refused_at_once_with_needed_and_available(prompt, max_tokens, words):
    scheduler = Scheduler(replace(LIMITS, num_pages=12), LATENCY)
    with pytest.raises(RequestError, match=words):
        scheduler.add(request(0, prompt, max_tokens))
    assert scheduler.idle


def test_what_just_fits_is_served():
    drive = Drive(replace(LIMITS, num_pages=12))
    asked = request(0, [1] * 20, 29)
    drive.add(asked)
    drive.run()
    assert drive.outcome(0) == naive(asked, 60)


def test_max_tokens_beyond_the_model_length_end_at_the_model_length():
    drive = Drive()
    drive.add(request(0, [1] * 50, 1000))
    drive.run()
    tokens, reason, _ = drive.outcome(0)
    assert (len(tokens), reason) == (10, "length")


def test_a_name_is_taken_until_its_request_ended():
    drive = Drive()
    drive.add(request(0, [1], 2))
    with pytest.raises(RequestError, match="'0' is being served already"):
        drive.scheduler.add(request(0, [1], 2))
    drive.run()
    drive.add(request(0, [1], 2))
    drive.run()


def test_a_name_is_free_while_the_row_of_its_ended_request_still_drains():
    drive = Drive()
    drive.add(request(0, [1], 9))
    drive.step()
    drive.plan()
    drive.scheduler.abort("0")
    assert drive.scheduler.snapshot().draining == 1
    drive.hear(drive.scheduler.take_reports())
    asked = request(0, [2], 3)
    drive.add(asked)
    while len(drive.uncollected) > 1:
        drive.collect()
    drive.run()
    assert drive.outcome(0) == naive(asked, 60)


def test_bad_words_without_their_token_sequences_are_refused():
    asked = replace(request(0, [1], 1), params=SamplingParams(bad_words=["no"]))
    with pytest.raises(RequestError, match="without their token sequences"):
        Scheduler(LIMITS, LATENCY).add(asked)
    assert row_sampling(replace(asked, bad_words=((4, 5),))).bad_words == ((4, 5),)


def test_every_sampling_value_reaches_the_device():
    values = {
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 7,
        "min_p": 0.1,
        "presence_penalty": 0.2,
        "frequency_penalty": 0.3,
        "repetition_penalty": 1.2,
        "min_tokens": 2,
        "logprobs": 3,
        "prompt_logprobs": -1,
    }
    params = SamplingParams(
        **values,
        logprobs_mode="processed",
        logit_bias={9: 1.0, 4: -1.0},
        allowed_token_ids=[4, 9],
        forced_token_ids=[-1, 4],
    )
    sampling = row_sampling(replace(request(0, [1], 1), params=params))
    assert {name: getattr(sampling, name) for name in values} == values
    assert sampling.processed_logprobs
    assert sampling.logit_bias == ((4, -1.0), (9, 1.0))
    assert sampling.allowed_token_ids == (4, 9)
    assert sampling.forced_token_ids == (-1, 4)
    assert row_sampling(request(0, [1], 1)) == RowSampling()


# Steps.


def test_one_step_mixes_prefill_slices_decoding_and_verification():
    drive = Drive(with_drafts(2, replace(LIMITS, max_num_batched_tokens=12)), LATENCY)
    drive.add(request(0, [1] * 5, 20))
    drive.step()
    drive.add(request(1, [2] * 14, 2))
    plan = drive.compute()
    assert plan.decode_add == (1,)
    assert plan.draft_cap == (DraftCap(1, 2),)
    assert plan.draft_budget == 0  # prompts have their floor first
    assert plan.prefill == (Prefill(2, 0, 11, False),)
    plan = drive.compute()
    assert plan.prefill == (Prefill(2, 11, 3, True),)
    assert (plan.draft_budget, plan.decode_add, plan.draft_cap) == (2, (), ())


def test_pages_come_slice_by_slice():
    drive = Drive(replace(LIMITS, max_num_batched_tokens=6))
    drive.add(request(0, [1] * 14, 1))
    pages = []
    while (plan := drive.step()) is not None:
        pages.append(len(plan.pages))
    assert pages == [2, 1, 1]


def test_a_decoding_row_in_steady_state_adds_nothing_to_the_plan_but_its_pages():
    drive = Drive()
    drive.add(request(0, [1], 20))
    drive.step()
    drive.step()
    for _ in range(12):
        plan = drive.compute()
        assert plan.admit == plan.release == plan.prefill == ()
        assert plan.decode_add == plan.decode_remove == plan.draft_cap == ()


def test_a_row_that_reaches_its_limit_for_certain_is_not_computed_once_more():
    drive = Drive()
    drive.add(request(0, [1] * 3, 5))
    drive.run()
    assert len(drive.plans) == 5


def test_an_end_token_costs_one_wasted_step_under_overlap_and_none_without():
    all_asked = (request(0, [i], 20, stops=(END,)) for i in range(1, 99))
    asked = next(one for one in all_asked if 2 < len(naive(one, 60)[0]) < 9)
    steps = len(naive(asked, 60)[0])
    for overlap in (False, True):
        drive = Drive(overlap=overlap)
        drive.add(asked)
        drive.run()
        assert len(drive.plans) == steps + overlap


def test_the_end_token_gives_no_stop_id_and_another_stop_id_does():
    drive, wanted = Drive(), {}
    for name in range(40):
        asked = request(name, [name], 40, stops=(END, 3, 5))
        wanted[name] = naive(asked, 60)
        drive.add(asked)
    drive.run()
    assert {name: drive.outcome(name) for name in wanted} == wanted
    assert {None, 3, 5} <= {stop_id for _, reason, stop_id in wanted.values() if reason == "stop"}


def test_an_ignored_end_token_does_not_reach_the_device():
    drive = Drive()
    drive.add(request(0, [1], 1, stops=(3,)))
    drive.add(request(1, [1], 1, stops=(END, 3)))
    plan = drive.compute()
    assert [(a.end_id, a.stop_ids) for a in plan.admit] == [(-1, (3,)), (END, (3,))]


def test_a_graph_is_the_smallest_that_holds_the_rows_and_only_for_pure_decoding():
    drive = Drive(replace(LIMITS, graph_sizes=(2, 4)))
    for name in range(3):
        drive.add(request(name, [1] * (1 + name), 3 + name))
    sizes = []
    while (plan := drive.step()) is not None:
        sizes.append(plan.graph_rows)
    assert sizes == [0, 4, 4, 2, 2]


def test_not_finite_logits_end_one_request_with_a_sentence_and_leave_the_others():
    asked = [request(name, [name + 1], 6) for name in range(3)]
    drive = Drive(nan_at={(1, 3)})
    for one in asked:
        drive.add(one)
    drive.run()
    assert drive.outcome(0) == naive(asked[0], 60)
    assert drive.outcome(2) == naive(asked[2], 60)
    assert drive.outcome(1) == (naive(asked[1], 60)[0][:2], "error", None)
    assert "not finite" in str(drive.last["1"].error)


def test_times_of_a_request_are_those_of_the_calls():
    drive = Drive(overlap=False)
    drive.add(Request("a", (1,), SamplingParams(max_tokens=3), seed=0, arrival=-2.0))
    drive.run()
    metrics = drive.last["a"].metrics
    assert metrics is not None
    assert (metrics.arrival, metrics.first_token, metrics.finished) == (-2.0, 1.0, 3.0)


def test_equal_calls_give_equal_plans():
    def plans():
        drive = Drive(with_drafts(2), drafter=DrafterSpec(60, ragged=True))
        for name in range(12):
            drive.add(request(name, [name] * (1 + name * 5 % 17), 9, priority=name % 2))
        return drive.run().plans

    assert plans() == plans()


# Ends from outside.


@pytest.mark.parametrize("turns", range(8))
@pytest.mark.parametrize("uncollected", [0, 1])
def test_abort_in_every_phase_returns_every_page_and_is_reported_once(turns, uncollected):
    drive = Drive(replace(LIMITS, max_num_batched_tokens=8), overlap=False)
    drive.add(request(0, [1] * 20, 6))
    other = request(1, [2] * 3, 4)
    drive.add(other)
    for _ in range(turns):
        drive.step()
    if uncollected:
        drive.plan()
    assert drive.scheduler.abort("0")
    assert not drive.scheduler.abort("0")
    if not uncollected:
        row_pages = 0 if "1" in drive.last else 2
        assert drive.scheduler.snapshot().pages_used <= row_pages
    drive.run()
    assert drive.last["0"].finish_reason == "abort"
    assert drive.outcome(1) == naive(other, 60)


def test_abort_of_an_unknown_name_is_false():
    assert not Drive().scheduler.abort("x")


def test_pages_of_an_ended_row_are_kept_until_its_uncollected_step_is_applied():
    drive = Drive()
    drive.add(request(0, [1] * 8, 6))
    drive.plan()
    drive.scheduler.abort("0")
    assert drive.scheduler.snapshot().pages_used == 2
    assert drive.scheduler.plan(0.0) is None
    drive.collect()
    assert drive.scheduler.snapshot().pages_used == 0
    assert drive.tokens["0"] == []


# Want of pages.


def preemptions(drive, name):
    metrics = drive.last[str(name)].metrics
    assert metrics is not None
    return metrics.preemptions


def test_pages_promised_to_a_prompt_under_way_admit_nobody_else():
    drive = Drive(replace(LIMITS, num_pages=10, max_num_batched_tokens=8))
    drive.add(request(0, [1] * 30, 2))  # 8 pages, 2 of them in the first step
    drive.compute()
    drive.add(request(1, [2] * 12, 2))  # 3 pages
    drive.add(request(2, [3] * 8, 2))  # 2 pages: passes by
    seen = [a.seed for _ in range(4) for a in drive.compute().admit]
    assert seen == [2]
    drive.run()
    assert drive.scheduler.snapshot().preemptions == 0


def test_admission_leaves_headroom_to_rows_that_run():
    policy = replace(THROUGHPUT, headroom_percent=25)
    drive = Drive(replace(LIMITS, num_pages=12), policy)
    drive.add(request(0, [1] * 24, 20))  # 6 pages, and one for what it generates
    for _ in range(3):
        drive.compute()
    assert drive.scheduler.snapshot().pages_free == 5
    drive.add(request(1, [2] * 12, 2))  # 3 pages, and 3 of 12 stay free
    assert drive.compute().admit == ()
    drive.add(request(2, [2] * 8, 2))  # 2 pages
    assert [a.seed for a in drive.compute().admit] == [2]
    drive.run()


def test_the_victim_is_of_low_priority_then_cheap_then_young_and_resumes_with_its_tokens():
    limits = replace(LIMITS, num_pages=9, max_model_len=36, max_num_batched_tokens=32)
    drive = Drive(limits)
    asked = [
        request(0, [1] * 8, 20, priority=1),
        request(1, [2] * 9, 20, priority=0),
        request(2, [3] * 8, 20, priority=1),
    ]
    for one in asked:
        drive.add(one)
    drive.run()
    assert [drive.outcome(n) for n in range(3)] == [naive(one, 36) for one in asked]
    first = next(plan for plan in drive.plans if plan.release)
    rows = {admit.row: admit.seed for admit in drive.plans[0].admit}
    assert [rows[row] for row in first.release] == [2]
    again = next(a for plan in drive.plans[1:] for a in plan.admit if a.seed == 2)
    assert again.prompt_len == 8
    assert list(again.ids[8:]) == naive(asked[2], 36)[0][: len(again.ids) - 8]
    assert len(again.ids) > 9
    assert preemptions(drive, 2) >= 1
    assert preemptions(drive, 1) == 0


def test_decoder_start_is_fixed_by_the_prompt_even_after_a_preemption():
    limits = replace(LIMITS, num_pages=9, max_model_len=36, decoder_keep=6)
    drive = Drive(limits)
    for name in range(3):
        drive.add(request(name, [name] * (8 + name), 20))
    drive.run()
    admits = [admit for plan in drive.plans for admit in plan.admit]
    assert len(admits) > 3
    assert {(a.seed, a.decoder_start) for a in admits} == {(0, 2), (1, 3), (2, 4)}


def test_drafts_are_given_up_before_a_row_is():
    # Row 1 holds 8 tokens in 2 pages and may write 3 drafts to a third, row 2 holds the third.
    drive = Drive(replace(LIMITS, num_pages=3, max_draft=3))
    drive.add(request(0, [1] * 7, 5))
    drive.add(request(1, [1], 2))
    drive.run()
    assert [plan.draft_budget for plan in drive.plans][:3] == [0, 0, 3]
    assert drive.scheduler.snapshot().preemptions == 0


def test_a_row_near_its_limit_needs_no_pages_beyond_it_for_its_drafts():
    drive = Drive(replace(LIMITS, num_pages=3, max_draft=3))
    drive.add(request(0, [1] * 9, 4))  # 12 of its 13 tokens are written: 3 pages
    drive.compute()
    assert drive.compute().draft_budget == 3


def test_a_preempted_request_goes_before_those_of_its_priority_that_never_ran():
    limits = replace(LIMITS, num_pages=6, max_model_len=24, max_num_seqs=2, num_slots=2)
    drive = Drive(limits)
    for name in range(4):
        drive.add(request(name, [name] * 8, 14, priority=0))
    drive.run()
    order = [a.seed for plan in drive.plans for a in plan.admit]
    assert order[:2] == [0, 1]
    assert order[2] == 1
    assert preemptions(drive, 1) > 0


def test_prompts_under_way_are_served_by_priority_then_in_order_of_arrival():
    policy = replace(LATENCY, slice_tokens=5)
    drive = Drive(replace(LIMITS, num_pages=99, max_model_len=90), policy)
    for name, priority in enumerate([1, 0, 0]):
        drive.add(request(name, [1] * 60, 2, priority=priority))
    seeds = {admit.row: admit.seed for admit in drive.compute().admit}
    assert [seeds[piece.row] for piece in drive.compute().prefill] == [1, 2, 0]


# Age.


def rounds_before(drive, seed):
    """Steps that admitted requests of 2000 and more before `seed` came in."""
    plans = [[admit.seed for admit in plan.admit] for plan in drive.plans]
    first = next(i for i, seeds in enumerate(plans) if seed in seeds)
    return sum(any(s >= 2000 for s in seeds) for seeds in plans[:first])


def test_a_large_request_is_passed_over_64_times_and_then_goes_first():
    # It needs 13 of 14 pages, and small requests hold two or more all the time.
    drive = Drive(replace(LIMITS, num_pages=14, num_slots=6, max_num_seqs=6))
    for name in range(1000, 1003):
        drive.add(request(name, [1, 2], 3))
        drive.step()
    drive.add(request(1, [3] * 50, 2))
    for name in range(2000, 2300):
        drive.add(request(name, [4] * 4, 3))
        drive.step()
    assert rounds_before(drive, 1) == PASSED_OVER_LIMIT
    drive.run()
    assert len(drive.last) == 304


def test_a_low_priority_is_passed_over_64_times_and_then_goes_first():
    drive = Drive(replace(LIMITS, num_slots=3, max_num_seqs=2))
    for name in range(1000, 1004):
        drive.add(request(name, [1, 2], 3, priority=0))
    drive.step()
    drive.add(request(1, [3] * 5, 2, priority=9))
    for name in range(2000, 2400):
        drive.add(request(name, [4], 3, priority=0))
        drive.step()
    assert rounds_before(drive, 1) == PASSED_OVER_LIMIT
    drive.run()


def test_a_step_passes_over_whoever_came_before_the_latest_that_it_admits():
    drive = Drive(replace(LIMITS, num_slots=2, max_num_seqs=2), overlap=False)
    for name in range(1000, 1090):
        drive.add(request(name, [1], 1, priority=1))
    drive.add(request(1, [3], 1, priority=9))
    for name in range(2000, 2080):  # comes in first, and one that is older than 1 after it
        drive.add(request(name, [4], 1, priority=0))
        drive.step()
    assert rounds_before(drive, 1) == PASSED_OVER_LIMIT
    drive.run()


def test_a_request_that_waited_too_long_is_not_preempted_for_others():
    limits = Limits(
        num_pages=8,
        num_slots=2,
        max_model_len=40,
        max_num_batched_tokens=16,
        max_num_seqs=2,
        page_tokens=4,
    )
    drive = Drive(limits)
    drive.add(request(1000, [1], 30, priority=0))
    drive.add(request(1001, [1], 3, priority=0))
    drive.step()
    drive.add(request(1, [3], 25, priority=9))
    for turn in range(500):
        drive.add(request(2000 + turn, [4] * 4, 9, priority=0))
        drive.step()
        if "1" in drive.last:
            break
    assert preemptions(drive, 1) == 0
    assert drive.scheduler.snapshot().preemptions > 0


def test_priorities_decide_who_comes_in_first():
    drive = Drive(replace(LIMITS, num_slots=1, max_num_seqs=1))
    for name, priority in enumerate([2, 0, 1, 0]):
        drive.add(request(name, [1], 2, priority=priority))
    drive.run()
    assert [a.seed for plan in drive.plans for a in plan.admit] == [1, 3, 2, 0]


def test_the_name_of_a_row_is_known_until_the_row_has_another_request():
    drive = Drive(replace(LIMITS, num_slots=1, max_num_seqs=1), overlap=False)
    assert drive.scheduler.request_at(1) is None
    for name in (7, 8):
        drive.add(request(name, [1], 1))
    drive.step()
    assert drive.last["7"].finish_reason == "length"
    assert drive.scheduler.request_at(1) == "7"
    drive.step()
    assert drive.scheduler.request_at(1) == "8"
