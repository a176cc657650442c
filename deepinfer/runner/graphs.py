"""Which captured graph a step may use, and the captures themselves.

A step without prefill slices is the same work for every batch once its sizes are rounded up: the
decoding rows to the planner's size, the drafts to a multiple of it, the longest context to a power
of two of pages. Knows nothing of what is captured.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar, cast

from deepinfer.arch import PAGE_TOKENS
from deepinfer.device import Graph, Graphs
from deepinfer.step import StepPlan

T = TypeVar("T")


class StepShape(NamedTuple):
    """All sizes of a decoding step: rows with padding, places for drafts, pages of the longest
    context, rounds agreed with other ranks."""

    rows: int
    places: int
    pages: int
    group: int

    @classmethod
    def of(cls, plan: StepPlan, most_pages: int) -> StepShape | None:
        """The shape of a step whose plan allows a graph, else None.

        Args:
            plan: `graph_rows` is the number of rows with padding; slices run without graphs.
            most_pages: width of the page table.
        """
        if not plan.graph_rows or plan.prefill:
            return None
        needed = max(1, -(-plan.max_len_hi // PAGE_TOKENS))
        pages = min(1 << (needed - 1).bit_length(), most_pages)
        rows = plan.graph_rows
        return cls(rows, -(-plan.draft_budget // rows) * rows, pages, plan.group)

    @property
    def max_len(self) -> int:
        """Bound on the tokens of any row."""
        return self.pages * PAGE_TOKENS


def context_bounds(most_pages: int) -> Iterator[int]:
    """Longest contexts of all page counts that shapes have, for a page table of that width."""
    pages = 1
    while pages < most_pages:
        yield pages * PAGE_TOKENS
        pages *= 2
    yield most_pages * PAGE_TOKENS


@dataclass
class _Capture:
    graph: Graph
    outputs: Any


@dataclass
class CaptureReport:
    """How many graphs there are, seconds that capturing took, replays so far."""

    graphs: int = 0
    seconds: float = 0.0
    replays: int = 0


class Captures:
    """Runs work directly when a key is new, captures it when the key comes again, then replays.

    The first run warms up what must not happen during a capture (compilation, libraries).

    Args:
        graphs: of the device.
    """

    def __init__(self, graphs: Graphs):
        self.report = CaptureReport()
        self._graphs = graphs
        self._seen: set[Hashable] = set()
        self._captured: dict[Hashable, _Capture] = {}

    def run(self, key: Hashable, compute: Callable[[], T]) -> T:
        """Do the work of `compute`; its host arguments must be functions of `key`.

        Returns:
            what `compute` returned; a later replay of the same key changes the tensors in it.
        """
        if key not in self._seen:
            self._seen.add(key)
            return compute()
        found = self._captured.get(key)
        if found is None:
            started = time.perf_counter()
            found = self._captured[key] = _Capture(*self._graphs.capture(compute))
            self.report.graphs += 1
            self.report.seconds += time.perf_counter() - started
        self.report.replays += 1
        found.graph.replay()
        return cast("T", found.outputs)
