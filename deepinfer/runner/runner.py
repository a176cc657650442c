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

from deepinfer.device import Event, Graphs
from deepinfer.model.network import Forward, Network
from deepinfer.model.state import State
from deepinfer.ops.sample import (
    RowLogprobs,
    SamplerState,
    SamplerTable,
    raw_logprobs,
    sample,
    top_logprobs,
)
from deepinfer.ops.verify import cut_at_end, verify
from deepinfer.runner.graphs import CaptureReport, Captures, StepShape, context_bounds
from deepinfer.runner.layout import Slices, StepLayout, lay_out
from deepinfer.runner.results import Chosen, Outbox, pack
from deepinfer.runner.rows import RowLimits, Rows, send
from deepinfer.runner.windows import Fresh, WindowPool, fresh_snapshots
from deepinfer.step import Admit, Prefill, StepPlan, StepResult

T = TypeVar("T")
_LOGIT_ROWS = 256  # prompt rows whose logits are held at once for log-probabilities


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

    def propose(self, rows: Rows, groups: Tensor, state: State) -> Proposal:
        """Drafts that follow each row's newest token."""
        ...


class Computed(NamedTuple):
    """A forward pass on its way: the layout, and logits fp32 [samples, vocab] to choose from;
    the pass itself if it computed prompts."""

    layout: StepLayout
    logits: Tensor
    forward: Forward | None


@dataclass
class _Step:
    """A step on its way. `shape` is None if it runs without graphs."""

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
        snapshots: places for window snapshots on the host.
        compact: prompt rows below a decoder start leave the decoder layers; else they are only
            masked (the same numbers, more work).

    Raises:
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
        snapshots: int = 0,
        compact: bool = True,
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
        self._captures = None if graphs is None else Captures(graphs)
        self._sample = sample.bind()
        self._verify = verify.bind()
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

    @torch.inference_mode()
    def forward(self, plan: StepPlan) -> None:
        """Take over the plan's changes and compute its tokens."""
        started = Event(self.device)
        started.record()
        self._keep_stored(plan)
        slices = self._change_host(plan)
        fresh = fresh_snapshots(plan, slices)
        sent = self._change_device(plan, slices, fresh)
        shape = None if self._captures is None else StepShape.of(plan, self.rows.limits.pages)
        if shape is None:
            decoding = self.rows.decoding[: len(self._decoding)]
            computed = self._compute(slices, sent, decoding, plan.draft_budget, plan.max_len_hi)
        else:
            assert shape.rows >= len(self._decoding), "a graph holds all decoding rows"
            computed = self._run(shape, shape, self._decode(shape))
        outbox = Outbox(plan.number, self._generating(plan), started)
        if fresh is not None:
            self._keep_fresh(fresh, computed)
        if computed.forward is not None:
            self._score_prompts(plan.prefill, computed.forward, outbox)
        self._steps[plan.number] = _Step(shape, computed, outbox)

    def _change_host(self, plan: StepPlan) -> Slices:
        for row in plan.release:
            self._sampler.release(row)
            del self._admitted[row]
        for item in plan.admit:
            self._admitted[item.row] = item
        self._decoding -= set(plan.decode_remove)
        self._decoding |= set(plan.decode_add)
        starts = {item.row: self._admitted[item.row].decoder_start for item in plan.prefill}
        return Slices.of(plan.prefill, starts, compact=self._compact)

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

    def _decode(self, shape: StepShape) -> Callable[[], Computed]:
        decoding = self.rows.decoding[: shape.rows]
        return lambda: self._compute(Slices(), {}, decoding, shape.places, shape.max_len)

    def _compute(
        self,
        slices: Slices,
        sent: Mapping[str, Tensor],
        decoding: Tensor,
        places: int,
        max_len: int,
    ) -> Computed:
        layout = lay_out(self.rows, slices, sent, decoding, places, max_len, self._ngram)
        forward = self.network.forward(
            layout.history, layout.batch, self.state, layout.tail, save=sent.get("save")
        )
        if self._proposer is not None:
            self._proposer.seed(forward, self.state)
        logits = self.network.logits(forward.hidden[layout.emit])
        return Computed(layout, logits, forward if slices.tokens else None)

    @torch.inference_mode()
    def sample(self, number: int, masks: Tensor | None = None) -> None:
        """Generate tokens from the forward pass of step `number`.

        Args:
            number: of the plan.
            masks: [samples, ceil(vocab / 32)] int32 grammar masks, or None; those of padding may
                be left out.
        """
        step, state = self._steps[number], self._sampler.state
        # Lists of rules live in tensors that change with the rows; masks come from outside.
        shape = step.shape if masks is None and not state.rules.any else None
        key = ("sample", shape, state.uses, state.stop_ids.shape[1])
        chosen = self._run(shape, key, lambda: self._choose(step.computed, state, masks))
        step.outbox.chosen(chosen)

    def _choose(self, computed: Computed, state: SamplerState, masks: Tensor | None) -> Chosen:
        layout, rows = computed.layout, self.rows
        if masks is not None:
            padding = len(computed.logits) - len(masks)
            masks = torch.nn.functional.pad(masks, (0, 0, 0, padding), value=-1)
        positions = rows.length[layout.sample_row] + layout.depth
        known = rows.tokens[:, : layout.batch.max_len + rows.limits.drafts]  # penalties read it all
        drawn = self._sample(
            computed.logits, state, layout.sample_row, positions, known, masks, False
        )
        groups, length = layout.groups, rows.length[layout.groups]
        depth = torch.arange(rows.limits.drafts + 1, device=self.device)
        here = depth <= layout.verified.unsqueeze(1)
        index = torch.where(here, layout.first.unsqueeze(1) + depth, 0)
        chosen = torch.where(here, drawn.tokens[index], -1)
        flags = torch.where(here, drawn.flags[index], 0)
        drafted = rows.tokens[groups.unsqueeze(1), length.unsqueeze(1) + depth[:-1]]
        drafted = torch.where(depth[:-1] < layout.verified.unsqueeze(1), drafted, -1)
        room = rows.limit[groups] - length
        kept = cut_at_end(
            self._verify(drafted, chosen, flags), room, state.end_id[groups], state.stop_ids[groups]
        )
        over = rows.ended[groups]
        tokens = kept.tokens.masked_fill(over.unsqueeze(1), -1)
        accepted, ended = kept.accepted.masked_fill(over, 0), kept.flags.masked_fill(over, 0)
        self._extend(groups, length, tokens, ended)
        return Chosen(
            pack(layout.verified, accepted, ended, tokens), _grouped(drawn.logprobs, index)
        )

    def _extend(self, groups: Tensor, length: Tensor, tokens: Tensor, flags: Tensor) -> None:
        """Append generated tokens to their rows; entries without a token go to row 0."""
        rows = self.rows
        depth = torch.arange(tokens.shape[1], device=self.device)
        there = tokens >= 0
        target = torch.where(there, groups.unsqueeze(1), 0)
        column = torch.where(there, length.unsqueeze(1) + depth, 0)
        rows.tokens[target, column] = tokens.clamp(min=0)
        rows.length[groups] = length + there.sum(1)
        rows.ended[groups] = rows.ended[groups] | (flags != 0)
        rows.drafts.index_fill_(0, groups, 0)

    @torch.inference_mode()
    def draft(self, number: int) -> None:
        """Propose drafts for the step after `number`."""
        if self._proposer is None:
            return
        step, proposer = self._steps[number], self._proposer
        groups = step.computed.layout.groups
        key = ("draft", step.shape)
        step.outbox.drafted(self._run(step.shape, key, lambda: self._propose(proposer, groups)))

    def _propose(self, proposer: Proposer, groups: Tensor) -> Tensor:
        proposal = proposer.propose(self.rows, groups, self.state)
        rows, count = self.rows, proposal.tokens.shape[1]
        columns = rows.length[groups].unsqueeze(1) + torch.arange(count, device=self.device)
        rows.tokens[groups.unsqueeze(1), columns] = proposal.tokens
        rows.confidence[groups, :count] = proposal.confidence
        rows.drafts.index_fill_(0, groups, count)
        return proposal.confidence

    @torch.inference_mode()
    def logits(self, number: int) -> Tensor:
        """Logits fp32 [rows, vocab] of an uncollected step, for checks.

        Those of the newest known token of each row that generates, in the order of the result;
        padding comes last.
        """
        computed = self._steps[number].computed
        return computed.logits[computed.layout.first]

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
        for low in range(0, len(hidden), _LOGIT_ROWS):
            part = slice(low, low + _LOGIT_ROWS)
            values = raw_logprobs(self.network.logits(hidden[part]))
            parts.append(top_logprobs(values, targets[part], wanted))
        return RowLogprobs(*(torch.cat(columns) for columns in zip(*parts, strict=True)))


def _dropped(item: Prefill, admit: Admit) -> int:
    """Rows of a slice that stop at the boundary layer."""
    return min(max(admit.decoder_start - item.start, 0), item.length)


def _grouped(found: RowLogprobs | None, index: Tensor) -> RowLogprobs | None:
    """Log-probabilities in the shape of the generated tokens."""
    return None if found is None else RowLogprobs(*(column[index] for column in found))
