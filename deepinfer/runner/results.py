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
    """What sampling decided: packed [groups, columns] int32 of `conclude`, and log-probabilities
    in the shape of the tokens, or None."""

    packed: Tensor
    logprobs: RowLogprobs | None


@dataclass
class Outbox:
    """Copies of one step's results, readable when `landed` has passed.

    Attributes:
        number: of the plan.
        rows: [n] int32, rows that generate; groups behind them are padding.
        started: event before the step's work and behind the changes of its plan.
        landed: event behind the last copy; None before anything was sent.
    """

    number: int
    rows: np.ndarray
    started: Event
    landed: Event | None = None
    _packed: Tensor | None = None
    _logprobs: RowLogprobs | None = None
    _drafts: Tensor | None = None
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

    def drafted(self, packed: Tensor) -> None:
        """Send drafts and confidences of `pack_drafts`."""
        self._drafts = fetch(packed[: len(self.rows)])
        self._land(packed.device)

    def _land(self, device: torch.device) -> None:
        self.landed = Event(device)
        self.landed.record()

    def result(self) -> StepResult:
        """Wait for the copies and put them together."""
        assert self._packed is not None, "collect comes after sample"
        assert self.landed is not None
        self.landed.wait()
        packed = self._packed.numpy()
        drafts = np.zeros((len(self.rows), 0), np.int32)
        if self._drafts is not None:
            drafts = self._drafts.numpy()
        tokens, bits = drafts[:, : drafts.shape[1] // 2], drafts[:, drafts.shape[1] // 2 :]
        return StepResult(
            number=self.number,
            row=self.rows,
            verified=packed[:, 0].copy(),
            accepted=packed[:, 1].copy(),
            tokens=packed[:, _COLUMNS:].copy(),
            flags=packed[:, 2].copy(),
            confidence=bits.copy().view(np.float32),
            drafts=tokens.copy(),
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
