"""The simulator: its loop, its oracle, its clock, its traces and what it writes."""

import hashlib
import json
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deepinfer.bench.simulate.cost import StepCost, StepWork, read_cost
from deepinfer.bench.simulate.device import Clock, CountingDevice, TimedRunner
from deepinfer.bench.simulate.drafts import DraftLaw
from deepinfer.bench.simulate.oracle import Oracle
from deepinfer.bench.simulate.plot import ticks
from deepinfer.bench.simulate.report import summary
from deepinfer.bench.simulate.run import Setup, facts, simulate
from deepinfer.bench.simulate.setup import Wishes, release_arch, simulated_limits
from deepinfer.bench.simulate.trace import Conversations, TraceLine, parse_lines, read_trace
from deepinfer.bench.simulate.traces import make_trace
from deepinfer.cli import main
from deepinfer.errors import ConfigError
from deepinfer.request import Request, SamplingParams
from deepinfer.scheduler import LATENCY, THROUGHPUT, Caching, Drafting, Limits, Scheduler
from deepinfer.step import StepPlan
from tests.scheduler.driver import Drive

TRACE = Path(__file__).parents[2] / "examples" / "traces" / "shared_prefix.jsonl"
LIMITS = Limits(
    num_pages=24,
    num_slots=6,
    max_model_len=60,
    max_num_batched_tokens=16,
    max_num_seqs=4,
    page_tokens=4,
)
KEEP = 6
COST = StepCost(base=1.0, prefill_token=0.1, decode_row=0.01, draft=0.001, host=0.25)
CACHINGS = (
    None,
    Caching(b"k", replay=20),
    Caching(b"k", replay=8, exact=False),
    Caching(b"k", replay=8, exact=False, snapshots=3, ttl=20.0),
)


@st.composite
def traces(draw):
    """Lines over few prefixes and sessions, so that much is shared."""
    known: dict[str, int] = {}
    lines = []
    for _ in range(draw(st.integers(1, 12))):
        prefix = draw(st.integers(0, 1))
        shared = (0, 13)[prefix]
        session = draw(st.none() | st.integers(0, 1).map(lambda i, p=prefix: f"{p}{i}"))
        output = draw(st.integers(1, 9))
        prompt = max(shared, known.get(session, 0)) + draw(st.integers(1, 12))
        if session is not None:
            known[session] = min(prompt + output, 40)
        arrival = draw(st.integers(0, 40)) / 2
        lines.append(TraceLine(arrival, str(prefix), shared, prompt, output, session))
    return sorted(lines, key=lambda line: line.arrival)


def setups(draw):
    caching = draw(st.sampled_from(CACHINGS))
    keep = None if caching is None or caching.exact else KEEP
    limits = replace(
        LIMITS,
        num_pages=draw(st.sampled_from((15, 24, 60))),
        max_draft=draw(st.sampled_from((0, 3))),
        caching=caching,
        decoder_keep=keep,
    )
    return Setup(limits, draw(st.sampled_from((LATENCY, THROUGHPUT))), COST, draw(st.booleans()))


@given(traces(), st.data())
@settings(deadline=None)
def test_every_line_is_served_once_and_its_tokens_add_up(lines, data):
    setup = replace(setups(data.draw), check=True)
    outcome = simulate(lines, setup)
    assert [entry.number for entry in outcome.served] == list(range(len(lines)))
    answered = 0
    for entry, line in zip(outcome.served, lines, strict=True):
        assert entry.arrival >= line.arrival
        if entry.error is not None:
            assert line.prompt_tokens >= setup.limits.max_model_len
            continue
        room = setup.limits.max_model_len - line.prompt_tokens
        assert entry.output_tokens == min(line.output_tokens, room)
        assert entry.prompt_tokens == line.prompt_tokens
        # The oracle sees prompts as they come; the planner may admit a later one first.
        assert 0 <= entry.saved <= entry.found < entry.prompt_tokens
        assert 0 <= entry.oracle < entry.prompt_tokens
        assert entry.first_token is not None
        assert entry.finished is not None
        assert entry.arrival + COST.base < entry.first_token <= entry.finished <= outcome.seconds
        answered += entry.output_tokens
    if outcome.points:
        last = outcome.points[-1].counters
        assert (last.generated, last.waiting, last.decoding) == (answered, 0, 0)
        assert last.preemptions == sum(entry.preemptions for entry in outcome.served)
        times = [point.seconds for point in outcome.points]
        assert times == sorted(times)
    assert outcome.busy <= outcome.seconds
    if setup.limits.caching is None:
        assert all(entry.found == 0 for entry in outcome.served)


@given(traces(), st.data())
@settings(deadline=None)
def test_the_fast_device_and_the_checking_one_give_one_run_and_so_does_a_second_time(lines, data):
    setup = setups(data.draw)
    setup = replace(setup, limits=replace(setup.limits, max_draft=0))
    fast, again = simulate(lines, setup), simulate(lines, setup)
    assert fast == again
    assert fast == simulate(lines, replace(setup, check=True))


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("caching", CACHINGS)
def test_the_plans_are_those_of_the_scheduler_driven_by_hand(overlap, caching):
    lines = [
        TraceLine(0.0, str(i % 3), 10, 11 + 3 * i % 17, 1 + 5 * i % 11, None) for i in range(14)
    ]
    keep = None if caching is None or caching.exact else KEEP
    endless = None if caching is None else replace(caching, ttl=1e9)
    limits = replace(LIMITS, num_pages=20, caching=endless, decoder_keep=keep)
    outcome = simulate(lines, Setup(limits, THROUGHPUT, COST, overlap))
    drive, talk = Drive(limits, THROUGHPUT, overlap=overlap), Conversations()
    for number, line in enumerate(lines):
        params = SamplingParams(max_tokens=line.output_tokens, ignore_eos=True)
        drive.add(Request(str(number), talk.prompt(number, line), params, seed=number))
    drive.run()
    digest = hashlib.sha256()
    for plan in drive.plans:
        digest.update(repr(facts(plan)).encode())
    assert outcome.plans == digest.hexdigest()[:16]
    assert len(outcome.points) == len(drive.plans)


@given(st.lists(st.tuples(st.lists(st.integers(0, 1), min_size=1), st.lists(st.integers(0, 1)))))
def test_the_oracle_is_the_longest_common_start_with_anything_before(texts):
    oracle, before = Oracle(2), []
    for prompt, answer in texts:
        longest = 0
        for text in before:
            common = 0
            while common < min(len(text), len(prompt)) and text[common] == prompt[common]:
                common += 1
            longest = max(longest, common // 2 * 2)
        assert oracle.arrived(prompt) == min(longest, (len(prompt) - 1) // 2 * 2)
        before.append(prompt)
        if answer:
            oracle.answered(prompt, answer)
            before.append([*prompt, *answer[:-1]])


def test_one_request_takes_the_time_of_its_steps():
    line = TraceLine(5.0, "a", 0, 20, 4)
    cost = replace(COST, prefill_pair=0.01, context_token=0.02)
    waiting = simulate([line], Setup(LIMITS, THROUGHPUT, cost, overlap=False))
    prefill = [
        cost.seconds(StepWork(16, 136, 0, 0, 0)),
        cost.seconds(StepWork(4, 4 * 16 + 10, 0, 0, 0)),
    ]
    decode = [cost.seconds(StepWork(0, 0, 1, length, 0)) for length in (21, 22, 23)]
    steps = [*prefill, *decode]
    assert waiting.served[0].ttft == pytest.approx(sum(prefill) + 2 * cost.host)
    assert waiting.served[0].tpot == pytest.approx(sum(decode) / 3 + cost.host)
    assert waiting.seconds == pytest.approx(5 + sum(steps) + 5 * cost.host)
    ahead = simulate([line], Setup(LIMITS, THROUGHPUT, cost, overlap=True))
    assert ahead.seconds == pytest.approx(5 + sum(steps) + cost.host)
    assert ahead.busy == pytest.approx(waiting.busy) == pytest.approx(sum(steps))


def test_a_turn_comes_after_the_answer_before_it_and_starts_with_all_that_was_said():
    lines = [
        TraceLine(0.0, "a", 8, 12, 5, "talk"),
        TraceLine(0.5, "a", 8, 30, 5, "talk"),
        TraceLine(0.5, "a", 8, 12, 1),
    ]
    limits = replace(LIMITS, caching=Caching(b"k", replay=0, exact=False))
    first, second, other = simulate(lines, Setup(limits, THROUGHPUT, COST)).served
    assert second.arrival == first.finished
    assert (other.arrival, other.found) == (0.5, 8)
    assert (second.oracle, second.found) == (16, 16)  # 12 + 5 tokens, the last is not computed


def test_drafts_are_accepted_as_often_as_assumed():
    lines = [TraceLine(0.0, "a", 0, 3, 400) for _ in range(8)]
    limits = replace(LIMITS, num_pages=2000, max_model_len=1000, max_num_seqs=6, max_draft=3)
    limits = replace(limits, max_num_batched_tokens=24)  # enough to verify every draft
    few = simulate(lines, Setup(limits, THROUGHPUT, COST, acceptance=0.0)).points[-1].counters
    assert (few.drafts_accepted, few.generated) == (0, 3200)
    some = simulate(lines, Setup(limits, THROUGHPUT, COST, acceptance=0.5)).points[-1].counters
    full = [0.5, 0.25, 0.125]  # drafts of a position count only behind right ones
    assert some.drafts_accepted / some.drafts_verified == pytest.approx(sum(full) / 3, abs=0.02)


@pytest.mark.parametrize("check", [False, True])
def test_adaptive_drafts_are_planned_from_simulated_times_and_confidences(check):
    lines = [TraceLine(0.0, "a", 0, 3, 150) for _ in range(8)]
    steep = StepCost(base=0.01, decode_row=0.01, draft=0.02, tile=2)
    limits = replace(LIMITS, num_pages=2000, max_model_len=1000, max_num_seqs=6, max_draft=3)
    limits = replace(limits, max_num_batched_tokens=24)
    found = []
    for adaptive in (False, True):
        allowed = replace(limits, drafting=Drafting(adaptive))
        setup = Setup(allowed, THROUGHPUT, steep, acceptance=0.3, check=check)
        outcome = simulate(lines, setup)
        assert outcome == simulate(lines, setup)
        assert all(entry.output_tokens == 150 for entry in outcome.served)
        found.append((outcome.seconds, outcome.points[-1].counters.drafts_verified))
    (slow, many), (fast, few) = found
    assert few < 0.5 * many
    assert fast < 0.8 * slow


def test_plans_of_an_adaptive_run_give_equal_results_and_times_on_a_fresh_runner():
    limits = replace(LIMITS, max_draft=3, drafting=Drafting(True), num_pages=200)
    limits = replace(limits, max_num_batched_tokens=24)

    def runner():
        return TimedRunner(CountingDevice(3, DraftLaw([0.6], boast=2.0)), limits, COST, Clock())

    first, scheduler, lines = runner(), Scheduler(limits, THROUGHPUT), []
    for number in range(4):
        params = SamplingParams(max_tokens=50, ignore_eos=True)
        scheduler.add(Request(str(number), (number, 3), params, seed=number))
    while (plan := scheduler.plan(0.0)) is not None:
        first.forward(plan)
        result = first.collect(plan.number)
        scheduler.apply(result, 0.0)
        lines.append((plan.to_json(), result))
    again = runner()
    budgets = set()
    for text, result in lines:
        plan = StepPlan.from_json(text)
        budgets.add(plan.draft_budget)
        again.forward(plan)
        found = again.collect(plan.number)
        assert found.equal(result)
        assert found.seconds == result.seconds > 0
    assert len(budgets) > 3


def test_limits_agree_with_those_of_the_engine():
    from deepinfer.arch import Records
    from deepinfer.engine.options import EngineOptions
    from deepinfer.engine.sharing import caching, decoder_rows

    arch = release_arch()
    for exact in (False, True):
        options = EngineOptions(deterministic=exact)
        engine = caching(arch, Records.of(arch), options, b"")
        mode = "exact" if exact else "bounded"
        limits = simulated_limits(arch, Wishes(caching=mode))
        assert engine is not None
        assert limits.caching is not None
        assert replace(engine, first_key=b"") == replace(limits.caching, first_key=b"")
        assert limits.decoder_keep == decoder_rows(arch, options)
    assert simulated_limits(arch, Wishes()).num_pages == (1 << 30) // 113_920
    assert simulated_limits(arch, Wishes(caching="off", pages=7)).caching is None
    for wrong in (Wishes(pool_bytes=100), Wishes(drafts=9)):
        with pytest.raises(ConfigError):
            simulated_limits(arch, wrong)


def test_the_shipped_trace_is_made_from_its_seed_and_hits_what_an_infinite_cache_would():
    lines = read_trace(TRACE)
    assert TRACE.stat().st_size <= 300_000
    assert lines == make_trace("shared_prefix", 0)
    assert lines != make_trace("shared_prefix", 1)
    setup = Setup(simulated_limits(release_arch(), Wishes()), THROUGHPUT)
    outcome = simulate(lines, setup)
    record = summary(outcome, setup, "shared_prefix")
    assert record["refused"] == 0
    assert record["prefix"]["hit_of_oracle"] >= 0.95
    assert record["prefix"]["saved_of_oracle"] >= 0.95
    fresh = sum(entry.prompt_tokens - entry.oracle for entry in outcome.served)
    assert fresh / 128 > setup.limits.num_pages  # so pages were evicted


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{}", "missing"),
        ("[1]", "an object"),
        ("{", "not JSON"),
        ('{"arrival": -1}', "missing"),
    ],
)
def test_lines_that_are_none_are_named(text, message):
    with pytest.raises(ConfigError, match=f"here, line 2: .*{message}"):
        parse_lines(["", text], "here")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("arrival", -1),
        ("arrival", "now"),
        ("arrival", float("nan")),
        ("prefix_tokens", 30),
        ("prefix_tokens", -1),
        ("prompt_tokens", 0),
        ("prompt_tokens", 2.5),
        ("output_tokens", 0),
        ("output_tokens", True),
        ("colour", "red"),
    ],
)
def test_values_out_of_range_are_named(field, value):
    good = json.loads(TraceLine(1.0, "a", 4, 8, 2, "s").to_json())
    assert parse_lines([json.dumps(good)], "here") == [TraceLine(1.0, "a", 4, 8, 2, "s")]
    with pytest.raises(ConfigError, match=f"{field}"):
        parse_lines([json.dumps(good | {field: value})], "here")


def test_costs_come_from_a_file_that_says_where_they_are_from(tmp_path):
    path = tmp_path / "cost.json"
    path.write_text(json.dumps({"base": 0.5, "source": "measured"}))
    assert read_cost(path) == StepCost(base=0.5, source="measured")
    path.write_text(json.dumps(StepCost().to_dict()))
    assert read_cost(path) == StepCost()
    wrong = ({"base": 0.5}, {"source": "s", "bse": 1}, {"source": "s", "base": 0}, [])
    for data in (*wrong, {"source": "s", "host": -1}):
        path.write_text(json.dumps(data))
        with pytest.raises(ConfigError):
            read_cost(path)


def test_the_command_prints_a_record_and_writes_files(tmp_path, capsys):
    path = tmp_path / "trace.jsonl"
    lines = [TraceLine(i / 10, "a", 3000, 3100 + i, 3 + i) for i in range(12)]
    path.write_text("".join(line.to_json() + "\n" for line in lines))
    arguments = ["simulate", "--trace", str(path), "--drafts", "2"]
    assert main([*arguments, "--json", "--check", "--out", str(tmp_path / "out")]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["prefix"]["hit_of_oracle"] == 1.0
    assert record["throughput"]["output_tokens"] == sum(line.output_tokens for line in lines)
    assert "not measured" in record["setup"]["cost"]["source"]
    files = {file.name for file in (tmp_path / "out").iterdir()}
    assert files == {"report.md", "curves.csv", "requests.csv", "curves.svg"}
    image = ElementTree.parse(tmp_path / "out" / "curves.svg").getroot()
    assert len([item for item in image.iter() if item.tag.endswith("polyline")]) == 7
    assert len((tmp_path / "out" / "requests.csv").read_text().splitlines()) == 13
    assert main([*arguments, "--caching", "off", "--no-async-scheduling"]) == 0
    assert "| hit: in shared pages | 0 | 0.0 | 0.0 |" in capsys.readouterr().out
    assert main([*arguments, "--acceptance", "2"]) == 2


def test_the_command_makes_the_trace(capsys):
    assert main(["simulate", "--make", "shared_prefix"]) == 0
    assert capsys.readouterr().out == TRACE.read_text()
    assert main(["simulate", "--make", "nothing"]) == 2


def test_a_trace_that_is_refused_whole_still_has_a_report(tmp_path, capsys):
    path = tmp_path / "trace.jsonl"
    path.write_text(TraceLine(0.0, "a", 0, 5000, 3).to_json())
    arguments = ["simulate", "--trace", str(path), "--pages", "3", "--out", str(tmp_path / "out")]
    assert main(arguments) == 0
    assert "1 requests, 1 refused" in capsys.readouterr().out


@given(st.floats(1e-6, 1e9))
def test_ticks_are_few_and_reach_the_top(most):
    marks = ticks(most)
    assert marks[0] == 0
    assert marks[-1] >= most * (1 - 1e-6)
    assert marks[-2] < most
    assert 4 <= len(marks) <= 10
