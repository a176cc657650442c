"""Runs plans on a torch device: forward, sample, draft, collect.

Owns row state, pools and sampling values; each call enqueues work and only `collect` waits. Knows
nothing of why a plan is as it is.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from deepinfer.model.network import Forward, Network
from deepinfer.model.state import State
from deepinfer.ops.sample import RowLogprobs, SamplerTable, raw_logprobs, sample, top_logprobs
from deepinfer.ops.verify import cut_at_end, verify
from deepinfer.runner.layout import StepLayout, lay_out
from deepinfer.runner.rows import RowLimits, Rows
from deepinfer.step import Admit, Prefill, PromptLogprobs, StepPlan, StepResult, TopLogprobs

_LOGIT_ROWS = 256  # prompt rows whose logits are held at once for log-probabilities


class Proposal(NamedTuple):
    """Drafts for the next step: tokens [groups, drafts] int64, confidence [groups, drafts] fp32."""

    tokens: Tensor
    confidence: Tensor


class Proposer(Protocol):
    """Proposes drafts for rows that have just generated."""

    def seed(self, forward: Forward, state: State) -> None:
        """Take over what a forward pass computed."""
        ...

    def propose(self, rows: Rows, groups: Tensor, state: State) -> Proposal:
        """Drafts that follow each row's newest token."""
        ...


@dataclass
class _Step:
    """A step on its way."""

    layout: StepLayout
    logits: Tensor
    prompt_logprobs: list[PromptLogprobs]
    started: float
    tokens: Tensor | None = None
    accepted: Tensor | None = None
    flags: Tensor | None = None
    logprobs: RowLogprobs | None = None
    confidence: Tensor | None = None


class TorchRunner:
    """Device side of the engine.

    Args:
        network: loaded weights and bound operations.
        limits: sizes of the row table.
        pages: pages of the pool, the reserved page 0 included.
        proposer: drafts for speculation; None proposes nothing.
    """

    def __init__(
        self, network: Network, limits: RowLimits, *, pages: int, proposer: Proposer | None = None
    ):
        self.network = network
        self.device = network.device
        self.rows = Rows(limits, self.device)
        self.state = State.allocate(
            network.arch, network.records, pages=pages, slots=limits.rows, device=self.device
        )
        self._sampler = SamplerTable(limits.rows, self.device)
        self._proposer = proposer
        self._sample = sample.bind()
        self._verify = verify.bind()
        engram = network.arch.engram
        self._ngram = 1 if engram is None else engram.max_ngram_size
        self._admitted: dict[int, Admit] = {}
        self._decoding: set[int] = set()
        self._decoding_rows = torch.zeros(0, dtype=torch.int64, device=self.device)
        self._steps: dict[int, _Step] = {}

    @torch.inference_mode()
    def forward(self, plan: StepPlan) -> None:
        """Take over the plan's changes and compute its tokens."""
        started = time.perf_counter()
        self._change(plan)
        layout = lay_out(
            self.rows,
            plan.prefill,
            {item.row: self._admitted[item.row].decoder_start for item in plan.prefill},
            self._decoding_rows,
            plan.draft_budget,
            plan.max_len_hi,
            self._ngram,
        )
        forward = self.network.forward(layout.history, layout.batch, self.state, layout.tail)
        if self._proposer is not None:
            self._proposer.seed(forward, self.state)
        logits = self.network.logits(forward.hidden[layout.emit])
        scores = self._score_prompts(plan.prefill, forward)
        self._steps[plan.number] = _Step(layout, logits, scores, started)

    def _change(self, plan: StepPlan) -> None:
        for row in plan.release:
            self._sampler.release(row)
            del self._admitted[row]
        self.rows.release(plan.release)
        for item in plan.admit:
            self._sampler.admit(item)
            self._admitted[item.row] = item
        self.rows.admit(plan.admit)
        self.rows.append_pages(plan.pages)
        self.rows.set_caps(plan.draft_cap)
        if plan.decode_add or plan.decode_remove:
            self._decoding -= set(plan.decode_remove)
            self._decoding |= set(plan.decode_add)
            ordered = torch.tensor(sorted(self._decoding), dtype=torch.int64)
            self._decoding_rows = ordered.to(self.device)

    @torch.inference_mode()
    def sample(self, number: int, masks: Tensor | None = None) -> None:
        """Generate tokens from the forward pass of step `number`.

        Args:
            number: of the plan.
            masks: [samples, ceil(vocab / 32)] int32 grammar masks, or None.
        """
        step = self._steps[number]
        layout, rows = step.layout, self.rows
        positions = rows.length[layout.sample_row] + layout.depth
        state = self._sampler.state
        known = rows.tokens[:, : layout.batch.max_len + rows.limits.drafts]  # penalties read it all
        drawn = self._sample(step.logits, state, layout.sample_row, positions, known, masks, False)
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
        step.tokens = kept.tokens.masked_fill(over.unsqueeze(1), -1)
        step.accepted = kept.accepted.masked_fill(over, 0)
        step.flags = kept.flags.masked_fill(over, 0)
        step.logprobs = _grouped(drawn.logprobs, index)
        self._extend(groups, length, step.tokens, step.flags)

    def _extend(self, groups: Tensor, length: Tensor, tokens: Tensor, flags: Tensor) -> None:
        """Append generated tokens to their rows; entries without a token go to row 0."""
        rows = self.rows
        depth = torch.arange(tokens.shape[1], device=self.device)
        there = tokens >= 0
        target = torch.where(there, groups.unsqueeze(1), 0)
        column = torch.where(there, length.unsqueeze(1) + depth, 0)
        rows.tokens[target, column] = tokens.clamp(min=0)
        rows.length[groups] = length + there.sum(1)
        rows.ended[groups] |= flags != 0
        rows.drafts[groups] = 0

    @torch.inference_mode()
    def draft(self, number: int) -> None:
        """Propose drafts for the step after `number`."""
        if self._proposer is None:
            return
        groups = self._steps[number].layout.groups
        proposal = self._proposer.propose(self.rows, groups, self.state)
        rows, count = self.rows, proposal.tokens.shape[1]
        columns = rows.length[groups].unsqueeze(1) + torch.arange(count, device=self.device)
        rows.tokens[groups.unsqueeze(1), columns] = proposal.tokens
        rows.confidence[groups, :count] = proposal.confidence
        rows.drafts[groups] = count
        self._steps[number].confidence = proposal.confidence

    def collect(self, number: int) -> StepResult:
        """Wait for step `number` and return what it produced."""
        step = self._steps.pop(number)
        assert step.tokens is not None, "collect comes after sample"
        assert step.accepted is not None
        assert step.flags is not None
        return StepResult(
            number=number,
            row=_host(step.layout.groups, np.int32),
            verified=_host(step.layout.verified, np.int32),
            accepted=_host(step.accepted, np.int32),
            tokens=_host(step.tokens, np.int32),
            flags=_host(step.flags, np.int32),
            confidence=_confidence(step),
            logprobs=None if step.logprobs is None else _top(step.logprobs),
            prompt_logprobs=tuple(step.prompt_logprobs),
            seconds=time.perf_counter() - step.started,
        )

    def _score_prompts(self, prefill: Sequence[Prefill], forward: Forward) -> list[PromptLogprobs]:
        """Log-probabilities of the tokens that follow each computed prompt position."""
        found: list[PromptLogprobs] = []
        first = 0
        for item in prefill:
            admit = self._admitted[item.row]
            wanted = admit.sampling.prompt_logprobs
            if wanted is not None:
                assert admit.decoder_start == 0, "scored prompts run every layer"
                last = min(item.start + item.length, admit.prompt_len - 1)
                hidden = forward.hidden[first : first + last - item.start]
                if len(hidden):
                    found.append(self._score(item.row, item.start, hidden, wanted))
            first += item.length - _dropped(item, admit)
        return found

    def _score(self, row: int, start: int, hidden: Tensor, wanted: int) -> PromptLogprobs:
        targets = self.rows.tokens[row, start + 1 : start + 1 + len(hidden)]
        parts: list[RowLogprobs] = []
        for low in range(0, len(hidden), _LOGIT_ROWS):
            part = slice(low, low + _LOGIT_ROWS)
            values = raw_logprobs(self.network.logits(hidden[part]))
            parts.append(top_logprobs(values, targets[part], wanted))
        joined = RowLogprobs(*(torch.cat(columns) for columns in zip(*parts, strict=True)))
        return PromptLogprobs(row, start + 1, _top(joined))


def _confidence(step: _Step) -> np.ndarray:
    if step.confidence is None:
        return np.zeros((len(step.layout.groups), 0), np.float32)
    return _host(step.confidence, np.float32)


def _dropped(item: Prefill, admit: Admit) -> int:
    """Rows of a slice that stop at the boundary layer."""
    return min(max(admit.decoder_start - item.start, 0), item.length)


def _grouped(found: RowLogprobs | None, index: Tensor) -> RowLogprobs | None:
    """Log-probabilities in the shape of the generated tokens."""
    return None if found is None else RowLogprobs(*(column[index] for column in found))


def _top(found: RowLogprobs) -> TopLogprobs:
    return TopLogprobs(
        chosen=_host(found.chosen, np.float32),
        ranks=_host(found.ranks, np.int32),
        ids=_host(found.ids, np.int32),
        values=_host(found.values, np.float32),
    )


def _host(values: Tensor, dtype: type) -> np.ndarray:
    return values.cpu().numpy().astype(dtype)
