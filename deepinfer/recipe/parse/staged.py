"""What the strict and the lenient reader of a block of tool calls have in common.

It does not know what a block looks like.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from enum import Enum, auto
from typing import TypeAlias

from deepinfer.recipe.parse.spans import Label, Span

# Reads on from a place in a text, appends spans, returns where the unread text starts.
Stage: TypeAlias = Callable[[str, int, list[Span]], int]


class Outcome(Enum):
    """How far a block is."""

    OPEN = auto()
    CLOSED = auto()  # its end tag was read
    NO_BLOCK = auto()  # the marker is prose
    NO_CALLS = auto()  # it ended, and held text but no call


class StagedReader(ABC):
    """Reads one block stage by stage and keeps its source until the first call is certain.

    Attributes:
        resumes: after the block the answer goes on.
        markers: what may open a block.
        outcome: how far the block is.
        called: a call was told.
    """

    resumes: bool

    def __init__(self, markers: list[str]) -> None:
        self.markers = markers
        self.outcome = Outcome.OPEN
        self.called = False
        self._raw: list[str] = []
        self._stage: Stage = self._between

    @abstractmethod
    def open(self, marker: str) -> None:
        """Start after the marker; `marker` is the source text up to here."""

    def open_inside(self) -> None:
        """Start in a block that the prompt has opened."""
        self._stage = self._between

    def read(self, text: str, start: int, out: list[Span]) -> int:
        """Read on from `start` and append spans; returns where the unread text starts."""
        size = len(text)
        while start < size and self.outcome is Outcome.OPEN:
            stage = self._stage
            end = stage(text, start, out)
            if end == start and self._stage is stage:
                break
            start = end
        return start

    @abstractmethod
    def finish(self, held: str, truncated: bool, out: list[Span]) -> None:
        """The output ended while `held` was unread; see `outcome` and `raw` for what is left.

        Args:
            held: the unread end.
            truncated: the output was cut off.
            out: spans are appended.
        """

    def raw(self) -> str:
        """The source text of what turned out to be no block."""
        return "".join(self._raw)

    @abstractmethod
    def _between(self, text: str, start: int, out: list[Span]) -> int: ...

    def _forget(self, out: list[Span]) -> None:
        """The source kept so far is markup for certain."""
        out.append(Span(Label.SKIP, "", sum(map(len, self._raw))))
        self._raw = []
