"""Which captured graph a step may use, and the captures themselves.

A step is the same work for every batch once its sizes are rounded up: the decoding rows to the
planner's size, the drafts to a multiple of it, the longest context to a power of two of pages, and
few prompt tokens to one of some sizes. Knows nothing of what is captured.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar, cast

import torch
from torch import Tensor

from deepinfer.arch import PAGE_TOKENS
from deepinfer.device import Graph, Graphs
from deepinfer.step import StepPlan

T = TypeVar("T")
_LOG = logging.getLogger(__name__)
_PROMPT_SHAPES = 128  # most shapes with prompts that are captured; later ones run directly
_READ = ("prefill", "emit", "save")  # parts of a step's upload that its forward pass reads


class StepShape(NamedTuple):
    """All sizes of a step: decoding rows with padding, places for drafts, pages of the longest
    context, rounds agreed with other ranks; prompt tokens with padding, prompts that end in the
    step, windows that are kept of it."""

    rows: int
    places: int
    pages: int
    group: int
    tokens: int = 0
    emits: int = 0
    saves: int = 0

    @classmethod
    def of(cls, plan: StepPlan, most_pages: int) -> StepShape | None:
        """The shape of a step that only decodes and whose plan allows a graph, else None.

        Args:
            plan: `graph_rows` is the number of rows with padding.
            most_pages: width of the page table.
        """
        if not plan.graph_rows or plan.prefill:
            return None
        rows = plan.graph_rows
        return cls(rows, _places(plan, rows), _pages(plan, most_pages), plan.group)

    @classmethod
    def with_prompts(
        cls, plan: StepPlan, most_pages: int, decoding: int, most_rows: int, sizes: Sequence[int]
    ) -> StepShape | None:
        """The shape of a step with few prompt tokens, else None.

        Args:
            plan: with slices.
            most_pages: width of the page table.
            decoding: rows that decode in the step.
            most_rows: that there are.
            sizes: numbers of prompt tokens with padding, ascending.
        """
        total = sum(piece.length for piece in plan.prefill)
        emits = sum(piece.emits for piece in plan.prefill)
        tokens = next((size for size in sizes if size >= total), 0)
        if not tokens or not (emits or decoding):
            return None
        rows = min(1 << (decoding - 1).bit_length(), most_rows) if decoding else 0
        saves = sum(save.fresh for save in plan.snapshots)
        sizes_of = (rows, _places(plan, rows), _pages(plan, most_pages), plan.group)
        return cls(*sizes_of, tokens, emits, saves)

    @property
    def max_len(self) -> int:
        """Bound on the tokens of any row."""
        return self.pages * PAGE_TOKENS


def _places(plan: StepPlan, rows: int) -> int:
    """Places for drafts: a multiple of the rows."""
    return -(-plan.draft_budget // rows) * rows if rows else 0


def _pages(plan: StepPlan, most: int) -> int:
    """Pages of the longest context, a power of two or as many as there are."""
    needed = max(1, -(-plan.max_len_hi // PAGE_TOKENS))
    return min(1 << (needed - 1).bit_length(), most)


def context_bounds(most_pages: int) -> Iterator[int]:
    """Longest contexts of all page counts that shapes have, for a page table of that width."""
    pages = 1
    while pages < most_pages:
        yield pages * PAGE_TOKENS
        pages *= 2
    yield most_pages * PAGE_TOKENS


class Inputs:
    """What steps with prompts read of the host's tensors, where their captured graphs read it."""

    def __init__(self) -> None:
        self._tensors: dict[StepShape, dict[str, Tensor]] = {}

    def serve(self, shape: StepShape | None) -> bool:
        """Whether steps of the shape may be captured: there are not too many shapes."""
        return shape in self._tensors or len(self._tensors) < _PROMPT_SHAPES

    def put(self, shape: StepShape, sent: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Copy what the step reads; returns tensors that are the same for every step of a shape."""
        given = {name: sent[name] for name in _READ if name in sent}
        new = {name: torch.empty_like(values) for name, values in given.items()}
        kept = self._tensors.setdefault(shape, new)
        for name, values in given.items():
            kept[name].copy_(values)
        return kept


@dataclass
class _Capture:
    graph: Graph
    outputs: Any


@dataclass
class CaptureReport:
    """How many graphs there are, seconds that capturing took, replays so far; whether the memory
    for graphs was used up."""

    graphs: int = 0
    seconds: float = 0.0
    replays: int = 0
    full: bool = False


class Captures:
    """Runs work directly when a key is new, captures it when the key comes again, then replays.

    The first run warms up what must not happen during a capture (compilation, libraries). Each
    graph keeps the memory of its results, so there are only as many as have room.

    Args:
        graphs: of the device.
        room: whether another graph may take memory; once it says no, nothing more is captured.
    """

    def __init__(self, graphs: Graphs, room: Callable[[], bool] = lambda: True):
        self.report = CaptureReport()
        self._graphs = graphs
        self._room = room
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
            if self._is_full():
                return compute()
            started = time.perf_counter()
            found = self._captured[key] = _Capture(*self._graphs.capture(compute))
            self.report.graphs += 1
            self.report.seconds += time.perf_counter() - started
        self.report.replays += 1
        found.graph.replay()
        return cast("T", found.outputs)

    def _is_full(self) -> bool:
        if not self.report.full and not self._room():
            self.report.full = True
            _LOG.warning(
                "no memory for more than %d captured graphs; steps of other sizes run directly, "
                "more slowly. Lower max_num_seqs, max_model_len or gpu_memory_utilization",
                self.report.graphs,
            )
        return self.report.full
