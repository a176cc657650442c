"""Captured decoding steps give the bits of direct ones, at states they were not captured at."""

import dataclasses

import pytest
import torch
from torch.utils._python_dispatch import _disable_current_modes

from deepinfer.device import upload
from deepinfer.model import engram_table
from deepinfer.request import SamplingParams
from deepinfer.runner.graphs import Captures, StepShape
from deepinfer.runner.rows import send
from deepinfer.scheduler import Drafting
from deepinfer.step import Prefill, StepPlan
from tests.model.networks import network, tokens
from tests.runner.matchers import HashMatcher
from tests.runner.recorded import HiddenSync, NoWaiting, RecordedGraphs
from tests.runner.twins import LIMITS, EchoProposer, Twins, capturable, runner, serve

KINDS = (
    SamplingParams(temperature=0, max_tokens=40, ignore_eos=True),
    SamplingParams(max_tokens=31, seed=3, temperature=0.8, ignore_eos=True, logprobs=2),
    SamplingParams(max_tokens=9, seed=4, top_k=5, top_p=0.9),
    SamplingParams(max_tokens=25, seed=5, repetition_penalty=1.3, presence_penalty=0.5),
    SamplingParams(max_tokens=12, seed=6, min_p=0.05, min_tokens=12, logprobs=0),
    SamplingParams(max_tokens=8, seed=7, allowed_token_ids=[20, 21, 22], logit_bias={21: 2.0}),
    SamplingParams(max_tokens=30, seed=8, temperature=1.5, ignore_eos=True),
    SamplingParams(max_tokens=14, temperature=0, frequency_penalty=1.0),
)


@pytest.fixture(autouse=True)
def unchecked_rows(monkeypatch):
    """A table in host memory looks at row ids before it uses them; one on a device does not."""
    monkeypatch.setattr(engram_table, "_check_rows", lambda rows, count: None)


def prompts(net, count):
    """Lengths around the ends of pages, so that rows cross them at different steps."""
    lengths = (3, 120, 1, 127, 40, 100, 128, 12, 60, 5, 250, 33)
    return [tokens(net, lengths[i % len(lengths)], seed=i) for i in range(count)]


@pytest.mark.parametrize(
    ("drafts", "ahead", "adaptive"), [(0, False, False), (2, True, False), (2, True, True)]
)
def test_replayed_steps_equal_direct_ones_bit_by_bit(drafts, ahead, adaptive):
    net, graphs = capturable("checkpoint"), RecordedGraphs()
    limits = dataclasses.replace(LIMITS, max_draft=drafts, drafting=Drafting(adaptive))
    proposers = [EchoProposer(drafts) if drafts else None for _ in range(2)]
    twins = Twins(
        runner(net, limits, None, proposers[0]), runner(net, limits, graphs, proposers[1])
    )
    params = [KINDS[i % len(KINDS)] for i in range(12)]
    found = serve(net, twins, limits, prompts(net, 12), params, ahead=ahead, late=5)
    assert all(output.error is None for output in found)
    report = twins.other.captures
    assert report.replays > 2 * report.graphs > 10
    assert twins.compared > 40
    shapes = {StepShape.of(plan, 3) for plan in twins.plans.values()}
    assert len({shape.pages for shape in shapes if shape}) == 3
    assert len({shape.rows for shape in shapes if shape}) >= 3
    places = {shape.places // shape.rows for shape in shapes if shape}
    assert len(places) > 1 if adaptive else places == {drafts}


def test_a_runner_is_warmed_up_for_every_number_of_drafts_that_it_is_told():
    net = capturable("checkpoint")
    limits = dataclasses.replace(LIMITS, max_draft=2, max_model_len=100)
    warm = runner(net, limits, RecordedGraphs(), EchoProposer(2))
    warm.warm_up([2], range(3))
    assert warm.captures.graphs == 3 * 3  # forward, sample, draft


def test_a_warmed_up_runner_replays_from_the_first_step_on_and_gives_the_same():
    net = capturable("checkpoint")
    limits = dataclasses.replace(LIMITS, max_draft=1, graph_sizes=(1, 4))
    warm = runner(net, limits, RecordedGraphs(), EchoProposer(1))
    warm.warm_up(limits.graph_sizes)
    shapes, before = len(limits.graph_sizes) * 3, dataclasses.replace(warm.captures)
    assert before.graphs == 3 * shapes  # forward, sample, draft
    twins = Twins(runner(net, limits, None, EchoProposer(1)), warm)
    greedy = [dataclasses.replace(KINDS[0], max_tokens=12)] * 4
    serve(net, twins, limits, prompts(net, 4), greedy, ahead=True, late=1)
    decoding = sum(1 for plan in twins.plans.values() if plan.graph_rows)
    assert warm.captures.graphs == before.graphs
    assert warm.captures.replays - before.replays == 3 * decoding > 20


@pytest.mark.parametrize(
    ("drafts", "ahead"), [(2, True), pytest.param(0, False, marks=pytest.mark.slow)]
)
def test_masks_are_part_of_the_replayed_step_and_touch_no_other_row(drafts, ahead):
    net = capturable("checkpoint")
    limits = dataclasses.replace(LIMITS, max_draft=drafts)
    proposers = [EchoProposer(drafts) if drafts else None for _ in range(3)]
    twins = Twins(
        runner(net, limits, None, proposers[0]),
        runner(net, limits, RecordedGraphs(), proposers[1]),
    )
    params = [
        dataclasses.replace(KINDS[i], logprobs=1, seed=i, max_tokens=14) for i in (0, 1, 3, 6)
    ]
    given = (limits, [[20 + i] * 9 for i in range(4)], params)
    matchers = {place: HashMatcher(net.arch.vocab_size) for place in (1, 2)}
    found = serve(net, twins, *given, ahead=ahead, late=1, matchers=matchers)
    plain = serve(net, runner(net, limits, None, proposers[2]), *given, ahead=ahead, late=1)
    assert twins.other.captures.replays > 10
    masked = [bool(plan.masked) for plan in twins.plans.values() if plan.graph_rows]
    assert True in masked
    assert False in masked
    assert [one.outputs == other.outputs for one, other in zip(found, plain, strict=True)] == [
        *(True, False, False, True)
    ]
    assert all(matcher.asked > 3 for matcher in matchers.values())
    assert all(bool(matcher.refused) == bool(drafts) for matcher in matchers.values())


def test_a_late_mask_delays_its_row_only_and_changes_no_token():
    net = capturable("checkpoint")
    limits = dataclasses.replace(LIMITS, max_draft=2)
    params = [dataclasses.replace(KINDS[i], seed=i, max_tokens=10) for i in (0, 1, 3)]
    given = (limits, [[20 + i] * 9 for i in range(3)], params)

    def run(seconds, patience):
        matchers = {place: HashMatcher(net.arch.vocab_size, seconds) for place in (0, 1)}
        twins = Twins(*(runner(net, limits, None, EchoProposer(2)) for _ in range(2)))
        found = serve(net, twins, *given, ahead=True, matchers=matchers, patience=patience)
        return len(twins.plans), [output.outputs for output in found]

    steps, expected = run(0.0, 60.0)
    more, found = run(0.002, 0.0)
    assert found == expected
    assert more > steps + 5


LOOKS = ("tolist", "item", "cpu", "numpy", "__bool__", "__int__", "__float__", "__index__")


class Watched:
    """A runner under a watch for what would make the host wait for a device."""

    def __init__(self, made, monkeypatch):
        self.made, self.monkeypatch, self.watch = made, monkeypatch, NoWaiting()

    def guard(self, call, *args):
        def refuse(*_args):
            raise HiddenSync("the host looks at a value")

        def bring_up(values, device):
            with _disable_current_modes():  # the one permitted way up
                return upload(values, device)

        with self.monkeypatch.context() as patched, self.watch:
            for name in LOOKS:
                patched.setattr(torch.Tensor, name, refuse)
            for place in ("runner.rows", "runner.masks", "ops.sample.state"):
                patched.setattr(f"deepinfer.{place}.upload", bring_up)
            call(*args)

    def forward(self, plan):
        self.guard(self.made.forward, plan)

    def sample(self, number, masks=None):
        self.guard(self.made.sample, number, masks)

    def draft(self, number):
        self.guard(self.made.draft, number)

    def collect(self, number):
        return self.made.collect(number)


@pytest.mark.parametrize("drafts", [0, 2])
def test_nothing_but_collect_would_wait_for_a_device(monkeypatch, drafts):
    net = capturable("checkpoint")
    limits = dataclasses.replace(LIMITS, max_draft=drafts)
    proposer = EchoProposer(drafts) if drafts else None
    watched = Watched(runner(net, limits, None, proposer), monkeypatch)
    matchers = {place: HashMatcher(net.arch.vocab_size) for place in (1, 6)}
    given = (limits, prompts(net, 8), KINDS)
    found = serve(net, watched, *given, ahead=True, late=3, matchers=matchers)
    assert all(output.error is None for output in found)
    assert watched.watch.operations > 10_000


def test_a_steady_decoding_step_sends_nothing_to_the_device(monkeypatch):
    sent = []

    def counting(parts, device):
        sent.append(sum(part.nbytes for part in parts.values()))
        return send(parts, device)

    monkeypatch.setattr("deepinfer.runner.runner.send", counting)
    net = capturable("checkpoint")
    serve(net, runner(net, LIMITS), LIMITS, prompts(net, 3), [KINDS[0]] * 3, ahead=True)
    assert sent.count(0) > 30  # no slices, no pages, nobody came or went
    assert max(sent[2:]) < 500


def test_what_looks_at_values_is_refused_by_name():
    net = network("checkpoint")
    with pytest.raises(ValueError, match="experts: reference is not graph-safe"):
        runner(net, LIMITS, RecordedGraphs())
    shy = EchoProposer(1)
    shy.graph_safe = False
    with pytest.raises(ValueError, match="this proposer"):
        runner(capturable("checkpoint"), LIMITS, RecordedGraphs(), shy)


@pytest.mark.parametrize(
    "look",
    [
        lambda x: x.sum().item(),
        lambda x: x[x > 0],
        lambda x: torch.where(x > 0),
        lambda x: torch.unique(x),
        lambda x: x.repeat_interleave(x.long()),
        lambda x: x + torch.tensor([1.0, 2.0, 3.0]),
        lambda x: x.__setitem__(x.long(), 4.0),
        lambda x: x[torch.ones((), dtype=torch.int64)],
    ],
)
def test_a_recording_refuses_what_a_capture_refuses(look):
    x = torch.ones(3)
    with pytest.raises(HiddenSync):
        RecordedGraphs().capture(lambda: look(x))


def test_a_recording_changes_nothing_and_a_replay_does():
    x = torch.zeros(3)

    def run():
        x.add_(1)
        return x * 2

    graph, twice = RecordedGraphs().capture(run)
    assert x.tolist() == [0, 0, 0]
    for count in (1, 2):
        graph.replay()
        assert (x.tolist(), twice.tolist()) == ([count] * 3, [2 * count] * 3)


def test_a_key_is_run_then_captured_then_replayed():
    captures, x = Captures(RecordedGraphs()), torch.zeros(1)
    for count in range(1, 6):
        assert captures.run("key", lambda: x.add_(1)).item() == count
        report = captures.report
        assert (report.graphs, report.replays) == (min(count - 1, 1), count - 1)


def test_without_room_steps_run_directly_and_graphs_that_exist_go_on(caplog):
    room, x = [True, False, True], torch.zeros(1)
    captures = Captures(RecordedGraphs(), lambda: room.pop(0))
    for count in range(1, 7):
        assert captures.run("early", lambda: x.add_(1)).item() == 2 * count - 1
        assert captures.run("late", lambda: x.add_(1)).item() == 2 * count
    report = captures.report
    assert (report.graphs, report.replays, report.full) == (1, 5, True)
    assert room == [True], "once the memory is used up nobody asks again"
    assert [record.message for record in caplog.records] == [
        "no memory for more than 1 captured graphs; steps of other sizes run directly, more "
        "slowly. Lower max_num_seqs, max_model_len or gpu_memory_utilization"
    ]


def test_shapes_round_the_context_up_to_powers_of_two():
    def maybe(max_len, **other):
        plan = dataclasses.replace(StepPlan(1, graph_rows=8, max_len_hi=max_len), **other)
        return StepShape.of(plan, most_pages=6)

    def shape(max_len, **other):
        found = maybe(max_len, **other)
        assert found is not None
        return found

    assert [shape(n).pages for n in (0, 1, 128, 129, 256, 257, 512, 513, 768)] == [
        1, 1, 1, 2, 2, 4, 4, 6, 6,
    ]  # fmt: skip
    assert shape(5).rows == 8
    assert maybe(5, graph_rows=0) is None
    assert maybe(5, prefill=(Prefill(1, 0, 4, True),)) is None
    assert [shape(5, draft_budget=n).places for n in (0, 1, 8, 9)] == [0, 8, 8, 16]
    assert shape(5) != shape(5, group=2)
