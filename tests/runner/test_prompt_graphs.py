"""Captured steps with prompts: the bits of direct ones, which steps are captured and which not."""

import dataclasses
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepinfer.cache import first_key, pages_for
from deepinfer.engine.border import Border
from deepinfer.engine.core import EngineCore
from deepinfer.engine.service import Service
from deepinfer.model import engram_table
from deepinfer.request import SamplingParams
from deepinfer.runner.dspark import DraftStages
from deepinfer.runner.graphs import Inputs, StepShape
from deepinfer.runner.rows import RowLimits
from deepinfer.runner.runner import TorchRunner
from deepinfer.scheduler import THROUGHPUT, Caching, Scheduler
from deepinfer.step import Prefill, SnapshotSave, StepPlan
from tests.model.networks import tokens
from tests.runner.recorded import RecordedGraphs
from tests.runner.test_graphs import KINDS
from tests.runner.twins import LIMITS, EchoProposer, Twins, capturable, serve

SIZES = (8, 24, 160)


@pytest.fixture(autouse=True)
def unchecked_rows(monkeypatch):
    """A table in host memory looks at row ids before it uses them; one on a device does not."""
    monkeypatch.setattr(engram_table, "_check_rows", lambda rows, count: None)


def made(net, limits, graphs, proposer=None):
    """A runner whose steps with prompts are captured, if any are."""
    rows = RowLimits(
        rows=limits.num_slots + 1,
        tokens=limits.max_model_len,
        pages=pages_for(limits.max_model_len, limits.page_tokens),
        drafts=limits.max_draft,
    )
    found = TorchRunner(
        net,
        rows,
        pages=limits.num_pages + 1,
        proposer=proposer,
        graphs=graphs,
        prompt_sizes=SIZES if graphs else (),
        snapshots=limits.caching.snapshots if limits.caching else 0,
    )
    for pool in (found.state.pages, found.state.slots):
        pool.fill_(255)  # NaN in every format: nothing may read what no request wrote
    return found


def captured(twins):
    """Shapes of steps with prompts that were replayed, by the plans that came."""
    seen, found = set(), set()
    for shape in twins.shapes:
        (found if shape in seen else seen).add(shape)
    return {shape for shape in found if shape and shape.tokens}


class Seen(Twins):
    """Twins that note the shapes of the other's steps."""

    def __init__(self, plain, other):
        super().__init__(plain, other)
        self.shapes = []

    def forward(self, plan):
        super().forward(plan)
        self.shapes.append(self.other._steps[plan.number].shape)


def waves(net, twins, limits, groups, apart):
    """Serve groups of (prompt, parameters), a group every `apart` steps; results by group."""
    ticks = itertools.count()
    core = EngineCore(
        Scheduler(limits, THROUGHPUT, end_id=net.arch.eos_token_id),
        twins,
        lambda: float(next(ticks)),
        async_scheduling=True,
    )
    service = Service(Border(net.arch, None, limits.max_model_len), core)
    done = [[] for _ in groups]
    waiting = list(enumerate(groups))
    for step in itertools.count():
        if waiting and (step % apart == 0 or service.idle):
            wave, group = waiting.pop(0)
            for place, (ids, params) in enumerate(group):
                service.add(f"{wave} {place}", ids, params)
        if service.idle and not waiting:
            return done
        for output in service.step():
            assert output.error is None
            if output.finished:
                done[int(output.request_id.split()[0])].append(output)
    raise AssertionError


@pytest.mark.parametrize(
    ("drafts", "keep"), [(2, 10), pytest.param(0, None, marks=pytest.mark.slow)]
)
def test_replayed_steps_equal_direct_ones_bit_by_bit(drafts, keep):
    """The same prompts several times, so that shapes come again."""
    net = capturable("checkpoint")
    limits = dataclasses.replace(LIMITS, max_draft=drafts, decoder_keep=keep)
    proposers = [EchoProposer(drafts) if drafts else None for _ in range(2)]
    twins = Seen(
        made(net, limits, None, proposers[0]), made(net, limits, RecordedGraphs(), proposers[1])
    )
    groups = [
        [(tokens(net, length, seed=length), dataclasses.replace(KINDS[kind], max_tokens=4))
         for length, kind in group]
        for group in [[(3, 1), (4, 3)], [(19, 6)]] * 3
    ]  # fmt: skip
    waves(net, twins, limits, groups, 2)
    shapes = captured(twins)
    assert {(shape.tokens, shape.emits) for shape in shapes} == {(8, 2), (24, 1)}
    assert all(shape.rows for shape in shapes)


def test_draft_stages_windows_and_hits_are_the_same_in_captured_steps():
    net = capturable("checkpoint")
    limits = dataclasses.replace(
        LIMITS,
        max_draft=3,
        decoder_keep=20,
        caching=Caching(first_key(b"", b"", b"", b""), replay=20, exact=False, snapshots=9),
    )
    twins = Seen(
        made(net, limits, None, DraftStages(net, 3)),
        made(net, limits, RecordedGraphs(), DraftStages(net, 3)),
    )
    params = SamplingParams(max_tokens=3, temperature=0, ignore_eos=True)
    shared = tokens(net, 131, seed=1)
    groups = [[([*shared, *tokens(net, 22, seed=seed)], params)] for seed in (2, 3, 4, 2)]
    groups += [[(tokens(net, 150, seed=seed), params)] for seed in (5, 6)]
    done = waves(net, twins, limits, groups, 99)
    assert [group[0].num_cached_tokens > 0 for group in done] == [False] + [True] * 3 + [False] * 2
    assert done[3][0].outputs[0].token_ids == done[0][0].outputs[0].token_ids
    shapes = captured(twins)
    assert {shape.rows for shape in shapes} == {0}
    assert {shape.saves for shape in shapes} == {0, 1}


def test_steps_whose_prompts_are_scored_run_directly():
    net = capturable("checkpoint")
    twins = Seen(made(net, LIMITS, None), made(net, LIMITS, RecordedGraphs()))
    params = [SamplingParams(max_tokens=2, prompt_logprobs=1)] * 3
    serve(net, twins, LIMITS, [[20, 21, 22]] * 3, params, ahead=False, late=2)
    assert [shape for shape in twins.shapes if shape and shape.tokens] == []


@given(
    st.lists(st.tuples(st.integers(1, 90), st.booleans()), min_size=1, max_size=5),
    st.integers(0, 9),
    st.integers(0, 3),
)
def test_shapes_hold_what_the_step_computes(pieces, decoding, drafts):
    prefill = tuple(Prefill(row, 0, *piece) for row, piece in enumerate(pieces, 20))
    saves = (SnapshotSave(20, 5, 1, True), SnapshotSave(20, 5, 2, False))
    plan = StepPlan(1, prefill=prefill, draft_budget=drafts * decoding, max_len_hi=200,
                    snapshots=saves)  # fmt: skip
    shape = StepShape.with_prompts(plan, 3, decoding, 9, SIZES)
    total, emits = sum(length for length, _ in pieces), sum(emits for _, emits in pieces)
    assert (shape is None) == (total > SIZES[-1] or not (emits or decoding))
    if shape is not None:
        assert shape.tokens == min(size for size in SIZES if size >= total)
        assert decoding <= shape.rows <= min(2 * decoding, 9)
        assert (shape.emits, shape.saves, shape.pages) == (emits, 1, 2)
        assert 0 <= shape.places - plan.draft_budget < max(shape.rows, 1)
        assert not shape.rows or shape.places % shape.rows == 0


def test_too_many_shapes_are_not_captured():
    inputs = Inputs()
    for rows in range(128):
        shape = StepShape(rows, 0, 1, 0, 8, 1)
        assert inputs.serve(shape)
        inputs.put(shape, {})
    assert inputs.serve(StepShape(5, 0, 1, 0, 8, 1))
    assert not inputs.serve(StepShape(128, 0, 1, 0, 8, 1))
