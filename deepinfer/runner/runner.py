"""Runs plans on a torch device: forward, sample, draft, collect.

Owns row state, pools and sampling values; each call only enqueues work, and `collect` waits for
copies that were enqueued behind it. A step that decodes and nothing else can be a replay of
captured graphs. Knows nothing of why a plan is as it is.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from deepinfer.device import Event, Graphs, find_device
from deepinfer.model.network import Forward, Network
from deepinfer.model.state import State
from deepinfer.ops.decoding import decoding
from deepinfer.ops.draft_store import draft_store
from deepinfer.ops.sample import RowLogprobs, SamplerTable, raw_logprobs, top_logprobs
from deepinfer.runner.choose import Chooser
from deepinfer.runner.graphs import CaptureReport, Captures, Inputs, StepShape, context_bounds
from deepinfer.runner.layout import Slices, StepLayout, lay_out
from deepinfer.runner.masks import MaskTable
from deepinfer.runner.results import Outbox
from deepinfer.runner.rows import RowLimits, Rows, send
from deepinfer.runner.verification import Drawing, RuleName, Verification
from deepinfer.runner.windows import Fresh, WindowPool, fresh_snapshots
from deepinfer.step import Admit, Prefill, StepMasks, StepPlan, StepResult

T = TypeVar("T")
_SCORED = 1 << 24  # logits of prompt rows that are held at once for log-probabilities,
_SCORED_ROWS = 256  # of at most so many rows


class Proposal(NamedTuple):
    """Drafts for the next step: tokens [groups, drafts] int64, confidence [groups, drafts] fp32."""

    tokens: Tensor
    confidence: Tensor


class Proposer(Protocol):
    """Proposes drafts for rows that have just generated.

    `graph_safe`: neither call looks at values or keeps anything between steps that is not in the
    state of rows and pools.
    """

    graph_safe: bool

    def seed(self, forward: Forward, state: State) -> None:
        """Take over what a forward pass computed."""
        ...

    def propose(self, rows: Rows, groups: Tensor, state: State, drawing: Drawing) -> Proposal:
        """Drafts that follow each row's newest token; those not taken for certain by `drawing`."""
        ...


class Computed(NamedTuple):
    """A forward pass on its way: the layout, and logits fp32 [samples, vocab] to choose from;
    the pass itself if it computed prompts."""

    layout: StepLayout
    logits: Tensor
    forward: Forward | None


@dataclass
class _Step:
    """A step on its way. `shape` is None if it runs without graphs; `masked` is the plan's."""

    masked: tuple[int, ...]
    shape: StepShape | None
    computed: Computed
    outbox: Outbox


class TorchRunner:
    """Device side of the engine.

    Args:
        network: loaded weights and bound operations.
        limits: sizes of the row table.
        pages: pages of the pool, the reserved page 0 included.
        proposer: drafts for speculation; None proposes nothing.
        graphs: where decoding steps are captured; None runs every step directly.
        graph_room: whether another graph may take memory; None = always.
        prompt_sizes: numbers of prompt tokens, ascending, up to which steps with prompts are
            captured too, padded to one of them; such steps are bound by launches.
        snapshots: places for window snapshots on the host.
        compact: prompt rows below a decoder start leave the decoder layers; else they are only
            masked (the same numbers, more work).
        verification: the rule by which drafts are kept.

    Raises:
        ConfigError: the rule needs more memory than it may have.
        ValueError: graphs are wanted, but an operation or the proposer cannot be captured.
    """

    def __init__(
        self,
        network: Network,
        limits: RowLimits,
        *,
        pages: int,
        proposer: Proposer | None = None,
        graphs: Graphs | None = None,
        graph_room: Callable[[], bool] | None = None,
        prompt_sizes: Sequence[int] = (),
        snapshots: int = 0,
        compact: bool = True,
        verification: RuleName = "match",
    ):
        if graphs is not None and (obstacles := network.graph_obstacles()):
            raise ValueError(f"no graphs of this network: {'; '.join(obstacles)}")
        if graphs is not None and proposer is not None and not proposer.graph_safe:
            raise ValueError("no graphs with this proposer: it looks at values")
        self.network = network
        self.device = network.device
        self.rows = Rows(limits, self.device)
        self.state = State.allocate(
            network.arch, network.records, pages=pages, slots=limits.rows, device=self.device
        )
        self._windows = WindowPool(network.arch, self.state, snapshots) if snapshots else None
        self._sampler = SamplerTable(limits.rows, self.device)
        self._proposer = proposer
        self._compact = compact
        self._captures = None if graphs is None else Captures(graphs, graph_room or (lambda: True))
        self._prompt_sizes = tuple(prompt_sizes)
        self._inputs = Inputs()
        self._verification = Verification(
            verification, limits.rows, limits.drafts, network.arch.vocab_size, self.device
        )
        self._chooser = Chooser(self.rows, self._verification)
        arch = find_device(str(self.device)).arch
        self._decode, self._store = decoding.bind(arch=arch), draft_store.bind(arch=arch)
        self._masks: MaskTable | None = None
        engram = network.arch.engram
        self._ngram = 1 if engram is None else engram.max_ngram_size
        self._admitted: dict[int, Admit] = {}
        self._decoding: set[int] = set()
        self._steps: dict[int, _Step] = {}

    @property
    def captures(self) -> CaptureReport:
        """What was captured so far."""
        return CaptureReport() if self._captures is None else self._captures.report

    def warm_up(self, sizes: Sequence[int], drafts: Sequence[int] | None = None) -> None:
        """Capture steps of some numbers of rows, for every context length, before there are rows.

        Args:
            sizes: numbers of rows with padding, as in `StepPlan.graph_rows`.
            drafts: numbers of drafts a row; None = the most there are.
        """
        assert not self._admitted, "warming up comes before the first request"
        numbers, limits = itertools.count(-1, -1), self.rows.limits
        counts = (limits.drafts,) if drafts is None else drafts
        for rows, count, bound in itertools.product(sizes, counts, context_bounds(limits.pages)):
            for _ in range(2):  # run, then captured
                number = next(numbers)
                plan = StepPlan(
                    number, graph_rows=rows, draft_budget=rows * count, max_len_hi=bound
                )
                self.forward(plan)
                self.sample(number)
                self.draft(number)
                self.collect(number)

    def clear(self) -> None:
        """Forget all rows and what they compute, after steps that served no request."""
        for row in self._admitted:
            self._sampler.release(row)
        self._admitted.clear()
        self._decoding.clear()
        self.rows.ended.fill_(True)
        self.rows.decoding.zero_()

    @torch.inference_mode()
    def forward(self, plan: StepPlan) -> None:
        """Take over the plan's changes and compute its tokens."""
        self._keep_stored(plan)
        shape, slices = self._change_host(plan)
        fresh = fresh_snapshots(plan, slices)
        if shape is not None and shape.tokens:
            slices = slices.padded(shape.tokens)
        sent = self._change_device(plan, slices, fresh)
        started = Event(self.device)
        started.record()
        if shape is None:
            decoding = self.rows.decoding[: len(self._decoding)]
            computed = self._compute(slices, sent, decoding, plan.draft_budget, plan.max_len_hi)
        else:
            assert shape.rows >= len(self._decoding), "a graph holds all decoding rows"
            computed = self._run(shape, shape, self._captured(shape, slices, sent))
        outbox = Outbox(plan.number, self._generating(plan), started)
        if fresh is not None:
            self._keep_fresh(fresh, computed)
        if computed.forward is not None:
            self._score_prompts(plan.prefill, computed.forward, outbox)
        self._steps[plan.number] = _Step(plan.masked, shape, computed, outbox)

    def _change_host(self, plan: StepPlan) -> tuple[StepShape | None, Slices]:
        for row in plan.release:
            self._sampler.release(row)
            del self._admitted[row]
        for item in plan.admit:
            self._admitted[item.row] = item
        self._decoding -= set(plan.decode_remove)
        self._decoding |= set(plan.decode_add)
        starts = {item.row: self._admitted[item.row].decoder_start for item in plan.prefill}
        shape = self._shape(plan)
        return shape, Slices.of(plan.prefill, starts, compact=self._compact and shape is None)

    def _shape(self, plan: StepPlan) -> StepShape | None:
        """Sizes of the graph that serves a step; None if it runs directly."""
        limits, pages = self.rows.limits, self.rows.limits.pages
        if self._captures is None or not plan.prefill:
            return None if self._captures is None else StepShape.of(plan, pages)
        sampling = (self._admitted[piece.row].sampling for piece in plan.prefill)
        if any(item.prompt_logprobs is not None for item in sampling):
            return None
        counts = len(self._decoding), limits.rows - 1
        shape = StepShape.with_prompts(plan, pages, *counts, self._prompt_sizes)
        return shape if self._inputs.serve(shape) else None

    def _change_device(
        self, plan: StepPlan, slices: Slices, fresh: Fresh | None
    ) -> Mapping[str, Tensor]:
        """Everything of the step that the device does not know yet goes up in one copy."""
        parts = {**self.rows.changes(plan, self._decoding), **slices.parts}
        if fresh is not None:
            parts["save"] = fresh.tokens
        if plan.admit:
            parts["sampling"] = self._sampler.enter(plan.admit)
        sent = send(parts, self.device)
        self.rows.change(plan, sent)
        if plan.admit:
            self._sampler.write(sent["sampling"])
        for item in plan.admit:
            if item.snapshot:
                assert self._windows is not None, "a snapshot without places"
                self._windows.restore(item.snapshot, item.slot, item.encoder_start)
        return sent

    def _keep_stored(self, plan: StepPlan) -> None:
        """Keep windows of earlier steps before anything changes."""
        for save in plan.snapshots:
            if not save.fresh:
                assert self._windows is not None, "a snapshot without places"
                self._windows.keep_stored(save.place, self._admitted[save.row].slot, save.end)

    def _keep_fresh(self, fresh: Fresh, computed: Computed) -> None:
        assert self._windows is not None, "a snapshot without places"
        assert computed.forward is not None, "snapshots of a step come from its prompts"
        assert computed.forward.windows is not None
        for place, windows in zip(fresh.places, computed.forward.windows, strict=True):
            self._windows.keep(place, windows)

    def _generating(self, plan: StepPlan) -> np.ndarray:
        emitting = [item.row for item in plan.prefill if item.emits]
        return np.array([*emitting, *sorted(self._decoding)], np.int32)

    def _run(self, shape: StepShape | None, key: object, compute: Callable[[], T]) -> T:
        """Compute directly, or by a graph where the step has a shape."""
        if shape is None or self._captures is None:
            return compute()
        return self._captures.run(key, compute)

    def _captured(
        self, shape: StepShape, slices: Slices, sent: Mapping[str, Tensor]
    ) -> Callable[[], Computed]:
        """The work of a step, reading nothing that is not where it was in the step before."""
        inputs = self._inputs.put(shape, sent) if shape.tokens else {}
        decoding = self.rows.decoding[: shape.rows]
        return lambda: self._compute(slices, inputs, decoding, shape.places, shape.max_len)

    def _compute(
        self,
        slices: Slices,
        sent: Mapping[str, Tensor],
        decoding: Tensor,
        places: int,
        max_len: int,
    ) -> Computed:
        layout = lay_out(
            self.rows, slices, sent, decoding, places, max_len, self._ngram, self._decode
        )
        forward = self.network.forward(
            layout.history, layout.batch, self.state, layout.tail, save=sent.get("save")
        )
        if self._proposer is not None:
            self._proposer.seed(forward, self.state)
        logits = self.network.logits(forward.hidden[layout.emit])
        return Computed(layout, logits, forward if slices.tokens else None)

    @torch.inference_mode()
    def sample(self, number: int, masks: StepMasks | None = None) -> None:
        """Generate tokens from the forward pass of step `number`.

        Args:
            number: of the plan.
            masks: of the rows that the plan says are masked; None if there are none.
        """
        step, state = self._steps[number], self._sampler.state
        assert masks is not None or not step.masked, f"step {number} came without its masks"
        assert masks is None or masks.covers(step.masked), f"masks of other rows: step {number}"
        table = None if masks is None or not masks.any else self._mask(masks)
        # Lists of rules live in tensors that change with the rows.
        shape = None if state.rules.any else step.shape
        key = ("sample", shape, state.uses, state.stop_ids.shape[1], table is not None)
        logits, layout = step.computed.logits, step.computed.layout
        chosen = self._run(shape, key, lambda: self._chooser.choose(logits, layout, state, table))
        step.outbox.chosen(chosen)

    def _mask(self, masks: StepMasks) -> MaskTable:
        """The table with the masks of a step; it is made when it is needed first."""
        if self._masks is None:
            limits, vocab = self.rows.limits, self.network.arch.vocab_size
            self._masks = MaskTable(limits.rows, limits.drafts, vocab, self.device)
        self._masks.write(masks)
        return self._masks

    @torch.inference_mode()
    def draft(self, number: int) -> None:
        """Propose drafts for the step after `number`."""
        if self._proposer is None:
            return
        step, proposer = self._steps[number], self._proposer
        groups = step.computed.layout.groups
        key = ("draft", step.shape, self._sampler.state.uses.noise)
        step.outbox.drafted(self._run(step.shape, key, lambda: self._propose(proposer, groups)))

    def _propose(self, proposer: Proposer, groups: Tensor) -> Tensor:
        rows = self.rows
        drawing = self._verification.drawing(self._sampler.state, groups, rows.length[groups])
        proposal = proposer.propose(rows, groups, self.state, drawing)
        return self._store(rows, groups, proposal.tokens, proposal.confidence)

    @torch.inference_mode()
    def logits(self, number: int) -> Tensor:
        """Logits fp32 [rows, vocab] of an uncollected step, for checks.

        Those of the newest known token of each row that generates, in the order of the result;
        padding comes last.
        """
        computed = self._steps[number].computed
        return computed.logits[computed.layout.first]

    def marks(self, number: int) -> tuple[Event, Event | None]:
        """Marks around the work of an uncollected step, for measurements.

        The first stands behind the changes that the plan made, the second behind the last copy to
        the host so far.
        """
        outbox = self._steps[number].outbox
        return outbox.started, outbox.landed

    def collect(self, number: int) -> StepResult:
        """Wait for step `number` and return what it produced."""
        return self._steps.pop(number).outbox.result()

    def _score_prompts(self, prefill: Sequence[Prefill], forward: Forward, outbox: Outbox) -> None:
        """Log-probabilities of the tokens that follow each computed prompt position."""
        first = 0
        for item in prefill:
            admit = self._admitted[item.row]
            wanted = admit.sampling.prompt_logprobs
            if wanted is not None:
                assert admit.decoder_start == 0, "scored prompts run every layer"
                last = min(item.start + item.length, admit.prompt_len - 1)
                hidden = forward.hidden[first : first + last - item.start]
                if len(hidden):
                    found = self._score(item.row, item.start, hidden, wanted)
                    outbox.prompt(item.row, item.start + 1, found)
            first += item.length - (_dropped(item, admit) if self._compact else 0)

    def _score(self, row: int, start: int, hidden: Tensor, wanted: int) -> RowLogprobs:
        targets = self.rows.tokens[row, start + 1 : start + 1 + len(hidden)]
        parts: list[RowLogprobs] = []
        step = min(_SCORED_ROWS, max(1, _SCORED // self.network.arch.vocab_size))
        for low in range(0, len(hidden), step):
            part = slice(low, low + step)
            values = raw_logprobs(self.network.logits(hidden[part]))
            parts.append(top_logprobs(values, targets[part], wanted))
        return RowLogprobs(*(torch.cat(columns) for columns in zip(*parts, strict=True)))


def _dropped(item: Prefill, admit: Admit) -> int:
    """Rows of a slice that stop at the boundary layer."""
    return min(max(admit.decoder_start - item.start, 0), item.length)
