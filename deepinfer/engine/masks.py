"""Where each constrained request stands in its grammar, and the masks of each step.

Masks are computed in threads while the device runs; one that is not ready in time delays its row
only. Knows nothing of how grammars are compiled, nor when they begin.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from deepinfer.errors import RequestError
from deepinfer.step import StepMasks

_PATIENCE = 0.02  # seconds that a step waits for masks before it goes on without those rows
_MOST_THREADS = 4


class Matcher(Protocol):
    """Where one text stands; see `grammar.Matcher`. Its calls may raise RequestError."""

    def accept(self, ids: Sequence[int]) -> int:
        """Take tokens up to the first illegal one; returns how many were taken."""
        ...

    def fill_masks(self, drafts: Sequence[int], rows: NDArray[np.int32]) -> int:
        """Write masks of the next token and of those after drafts; returns how many are legal."""
        ...

    def is_free_after(self, drafts: Sequence[int]) -> bool:
        """Whether every id is legal now and after each of `drafts`."""
        ...


class Asked(NamedTuple):
    """A masked row of a step: its request, and the drafts that it may verify."""

    name: str
    drafts: tuple[int, ...]


@dataclass
class _Text:
    """A request; while `job` runs, nobody else touches `matcher` and `rows` [1 + cap, words]."""

    matcher: Matcher
    rows: NDArray[np.int32]
    drafts: tuple[int, ...] = ()
    job: Future[int] | None = None


class Masks:
    """The matchers of all constrained requests.

    Args:
        drafts: most drafts of a row verified in a step.
        patience: seconds that a step waits for its masks.
    """

    def __init__(self, drafts: int, patience: float = _PATIENCE):
        self._drafts = drafts
        self._patience = patience
        self._texts: dict[str, _Text] = {}
        self._threads: ThreadPoolExecutor | None = None
        self.late = 0

    def add(self, name: str, matcher: Matcher, words: int) -> None:
        """Follow a request.

        Args:
            name: of the request.
            matcher: at the beginning of its output.
            words: 32-bit words of a mask.
        """
        rows = np.full((1 + self._drafts, words), -1, np.int32)
        self._texts[name] = _Text(matcher, rows)

    def forget(self, name: str) -> None:
        """Follow a request no more, if it was followed."""
        self._texts.pop(name, None)

    def accept(self, name: str, ids: Sequence[int]) -> str:
        """Take the tokens that a request generated, if it is followed.

        Returns:
            why the request cannot go on; empty if it can.
        """
        text = self._texts.get(name)
        if text is None:
            return ""
        try:
            taken = text.matcher.accept(ids)
        except RequestError as error:
            return str(error)
        return "" if taken == len(ids) else f"token {ids[taken]} does not satisfy the constraint"

    def step(self, asked: Mapping[int, Asked]) -> tuple[StepMasks, dict[str, str]]:
        """Masks of a step.

        Args:
            asked: by row, ascending; rows of requests that are not followed need no mask.

        Returns:
            the masks; and why requests cannot go on, by name (their rows count as free).
        """
        free = [row for row, item in asked.items() if not self._begin(item)]
        waiting = {row: self._texts[item.name] for row, item in asked.items() if row not in free}
        wait([text.job for text in waiting.values() if text.job is not None], self._patience)
        late: list[int] = []
        legal: dict[int, int] = {}
        failed: dict[str, str] = {}
        for row, text in waiting.items():
            job = text.job
            if job is None or not job.done():
                late.append(row)
                continue
            text.job = None
            if (error := job.exception()) is not None:  # a panic of the library is one, too
                failed[asked[row].name] = str(error)
                free.append(row)
            else:
                same = _common(text.drafts, asked[row].drafts)
                legal[row] = min(max(job.result(), 0), same)
        self.late += len(late)
        words = [waiting[row].rows for row in legal]
        masks = StepMasks(
            row=np.array(list(legal), np.int32),
            words=np.stack(words) if words else np.zeros((0, 1 + self._drafts, 0), np.int32),
            legal=np.array(list(legal.values()), np.int32),
            free=tuple(free),
            late=tuple(late),
        )
        return masks, failed

    def _begin(self, asked: Asked) -> bool:
        """Let the masks of a row be computed, unless they are; False if it needs none."""
        text = self._texts.get(asked.name)
        if text is None:
            return False
        if text.job is None:
            if text.matcher.is_free_after(asked.drafts):
                return False
            if self._threads is None:
                count = max(1, min(_MOST_THREADS, (os.cpu_count() or 1) - 1))
                self._threads = ThreadPoolExecutor(count, "masks")
            text.drafts = asked.drafts
            text.job = self._threads.submit(text.matcher.fill_masks, asked.drafts, text.rows)
        return True

    def close(self) -> None:
        """End the threads; no step may follow."""
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)


def _common(first: Sequence[int], second: Sequence[int]) -> int:
    """Length of the common beginning."""
    pairs = enumerate(zip(first, second, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(first), len(second)))
