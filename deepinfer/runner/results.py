"""What a step leaves behind: tensors on their way to the host, and the result made of them.

Knows nothing of how tokens are chosen.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from deepinfer.device import Event, fetch
from deepinfer.ops.sample import RowLogprobs
from deepinfer.step import PromptLogprobs, StepResult, TopLogprobs

_COLUMNS = 3  # verified, accepted, flags; tokens follow


class Chosen(NamedTuple):
    """What sampling decided: packed [groups, columns] int32 of `pack`, and log-probabilities in
    the shape of the tokens, or None."""

    packed: Tensor
    logprobs: RowLogprobs | None


def pack(verified: Tensor, accepted: Tensor, flags: Tensor, tokens: Tensor) -> Tensor:
    """Join [groups] integers and tokens [groups, 1 + cap] into one int32 tensor."""
    parts = (verified.unsqueeze(1), accepted.unsqueeze(1), flags.unsqueeze(1), tokens)
    return torch.cat(parts, dim=1).to(torch.int32)


@dataclass
class Outbox:
    """Copies of one step's results, readable when `landed` has passed.

    Attributes:
        number: of the plan.
        rows: [n] int32, rows that generate; groups behind them are padding.
        started: event before the step's work.
        landed: event behind the last copy; None before anything was sent.
    """

    number: int
    rows: np.ndarray
    started: Event
    landed: Event | None = None
    _packed: Tensor | None = None
    _logprobs: RowLogprobs | None = None
    _confidence: Tensor | None = None
    _prompts: list[tuple[int, int, RowLogprobs]] = field(default_factory=list)

    def prompt(self, row: int, start: int, found: RowLogprobs) -> None:
        """Send log-probabilities of known tokens [start, ...) of a row."""
        self._prompts.append((row, start, _fetched(found)))

    def chosen(self, found: Chosen) -> None:
        """Send what sampling decided."""
        count = len(self.rows)
        self._packed = fetch(found.packed[:count])
        if found.logprobs is not None:
            self._logprobs = _fetched(RowLogprobs(*(part[:count] for part in found.logprobs)))
        self._land(found.packed.device)

    def drafted(self, confidence: Tensor) -> None:
        """Send raw confidences [groups, drafts]."""
        self._confidence = fetch(confidence[: len(self.rows)])
        self._land(confidence.device)

    def _land(self, device: torch.device) -> None:
        self.landed = Event(device)
        self.landed.record()

    def result(self) -> StepResult:
        """Wait for the copies and put them together."""
        assert self._packed is not None, "collect comes after sample"
        assert self.landed is not None
        self.landed.wait()
        packed = self._packed.numpy()
        confidence = np.zeros((len(self.rows), 0), np.float32)
        if self._confidence is not None:
            confidence = self._confidence.numpy().copy()
        return StepResult(
            number=self.number,
            row=self.rows,
            verified=packed[:, 0].copy(),
            accepted=packed[:, 1].copy(),
            tokens=packed[:, _COLUMNS:].copy(),
            flags=packed[:, 2].copy(),
            confidence=confidence,
            logprobs=None if self._logprobs is None else _top(self._logprobs),
            prompt_logprobs=tuple(
                PromptLogprobs(row, start, _top(found)) for row, start, found in self._prompts
            ),
            seconds=self.started.seconds_until(self.landed),
        )


def _fetched(found: RowLogprobs) -> RowLogprobs:
    return RowLogprobs(*(fetch(part) for part in found))


def _top(found: RowLogprobs) -> TopLogprobs:
    """Arrays of their own, so that the host's copy can be used again."""
    return TopLogprobs(
        chosen=found.chosen.numpy().copy(),
        ranks=found.ranks.numpy().copy(),
        ids=found.ids.numpy().copy(),
        values=found.values.numpy().copy(),
    )
