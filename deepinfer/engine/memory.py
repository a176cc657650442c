"""The limits that follow from the memory there is: pages, slots, and what a step needs beside them.

Knows nothing of how limits are used.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from deepinfer.arch import PAGE_TOKENS, Arch, PageLayout, Records, SlotLayout
from deepinfer.engine.options import EngineOptions
from deepinfer.engine.sharing import draft_tokens
from deepinfer.engine.workspace import StepSize, table_bytes
from deepinfer.errors import ConfigError
from deepinfer.scheduler import Limits

_DEFAULT_CACHE_BYTES = 4 << 30  # where the system does not tell how much memory is free
_SPARE_SLOTS = 4  # rows that ended and await their last step


def _nothing(_step: StepSize) -> int:
    return 0


@dataclass(frozen=True)
class MemoryPlan:
    """What the state of requests takes.

    Attributes:
        limits: for the scheduler and the runner; what concerns sharing is not in them yet.
        page_bytes, slot_bytes: of one page and one slot.
        total_bytes: of all pages and slots.
        needed_pages: more would never be used.
        weight_bytes: of the weights, Engram tables left out.
        table_bytes: of what the device knows of all rows.
        step_bytes: that the temporary tensors of a step may take, by its shapes; 0 if memory is
            not the device's own.
        free_bytes: that remain for both and for graphs; None if the system does not tell.
        workspace_bytes: that a step of `step_tokens` tokens takes beside them, the largest there
            is; None if it was not measured.
        graph_bytes: that graphs captured at the start hold.
    """

    limits: Limits
    page_bytes: int
    slot_bytes: int
    total_bytes: int
    needed_pages: int
    weight_bytes: int = 0
    table_bytes: int = 0
    step_bytes: int = 0
    free_bytes: int | None = None
    workspace_bytes: int | None = None
    step_tokens: int = 0
    graph_bytes: int = 0

    def lines(self) -> list[str]:
        """For people."""
        limits = self.limits
        left = "unknown" if self.free_bytes is None else f"{self.free_bytes / 1e9:.2f} GB"
        lines = [
            f"max_model_len {limits.max_model_len}, {limits.max_num_seqs} requests at a time",
            f"{limits.num_pages} pages of {self.page_bytes:,} B "
            f"({limits.num_pages * PAGE_TOKENS:,} tokens), "
            f"{limits.num_slots} slots of {self.slot_bytes:,} B: {self.total_bytes / 1e9:.2f} GB",
            f"weights {self.weight_bytes / 1e9:.2f} GB, left for activations and graphs {left}",
        ]
        if self.step_bytes:
            lines.append(
                f"by shapes: a step takes at most {self.step_bytes / 1e9:.2f} GB, "
                f"tables of rows {self.table_bytes / 1e9:.2f} GB"
            )
        if self.workspace_bytes is not None:
            lines.append(
                f"measured: workspace of a step of {self.step_tokens:,} tokens "
                f"{self.workspace_bytes / 1e9:.2f} GB, captured graphs "
                f"{self.graph_bytes / 1e9:.2f} GB"
            )
        return lines


def plan_memory(
    arch: Arch,
    records: Records,
    options: EngineOptions,
    free_bytes: int | None,
    total: int | None,
    *,
    weight_bytes: int = 0,
    step: Callable[[StepSize], int] = _nothing,
) -> MemoryPlan:
    """Limits that fit the memory.

    On a device with memory of its own, pages leave room for a step of the largest size.

    Args:
        arch: the architecture.
        records: record formats of the numerics.
        options: what was asked for.
        free_bytes: memory that can be taken now, None if unknown.
        total: memory of the device, None for a CPU (then half of what is free is used).
        weight_bytes: what the weights hold already, for the report.
        step: bytes that a step of a size takes; see `workspace.step_bytes`.

    Raises:
        ConfigError: not even one request of `max_model_len` fits, or the limits contradict.
    """
    page_bytes = PageLayout.of(arch, records).bytes
    slot_bytes = SlotLayout.of(arch, records).bytes
    longest = options.max_model_len or arch.max_position_embeddings
    if longest > arch.max_position_embeddings:
        raise ConfigError(
            f"max_model_len {longest}: use at most {arch.max_position_embeddings}, the positions "
            "of the model"
        )
    slots = options.max_num_seqs + _SPARE_SLOTS
    batched = options.max_num_batched_tokens or max(8192, options.max_num_seqs)
    tables = table_bytes(slots + 1, longest, -(-longest // PAGE_TOKENS))
    needs = 0 if total is None else step(_largest(arch, options, batched, longest))
    budget = _budget(options, free_bytes, total, tables + needs)
    for_pages = budget - (slots + 1) * slot_bytes
    pages = for_pages // page_bytes - 1
    if options.max_model_len is None:
        longest = min(longest, max(pages, 0) * PAGE_TOKENS)
    needed = slots * -(-longest // PAGE_TOKENS)
    pages = min(pages, needed)
    if pages < -(-longest // PAGE_TOKENS) or longest < 2:
        raise ConfigError(
            f"{budget:,} B of cache memory do not hold one request of {longest} tokens besides "
            f"{slots} slots of {slot_bytes:,} B{_spared(needs + tables, total)}; raise "
            "kv_cache_memory_bytes, or lower max_model_len, max_num_seqs or max_num_batched_tokens"
        )
    limits = Limits(
        num_pages=pages,
        num_slots=slots,
        max_model_len=longest,
        max_num_batched_tokens=batched,
        max_num_seqs=options.max_num_seqs,
    )
    held = (pages + 1) * page_bytes + (slots + 1) * slot_bytes
    left = None if free_bytes is None else free_bytes - held
    tables = table_bytes(slots + 1, longest, -(-longest // PAGE_TOKENS))
    sizes = (page_bytes, slot_bytes, held, needed, weight_bytes, tables, needs, left)
    return MemoryPlan(limits, *sizes)


def _spared(needs: int, total: int | None) -> str:
    return "" if total is None else f" and {needs:,} B for a step and tables of rows"


def _largest(arch: Arch, options: EngineOptions, tokens: int, longest: int) -> StepSize:
    """A step that is as large as the options allow, in everything."""
    drafts, speculative = draft_tokens(arch, options), options.speculative()
    samples = min(tokens, options.max_num_seqs * (1 + drafts))
    proposed = options.max_num_seqs if drafts else 0
    by_law = bool(drafts) and speculative.verification != "match"
    return StepSize(tokens, samples, proposed, longest, by_law)


def _budget(options: EngineOptions, free_bytes: int | None, total: int | None, needs: int) -> int:
    if options.kv_cache_memory_bytes is not None:
        return options.kv_cache_memory_bytes
    if free_bytes is None:
        return _DEFAULT_CACHE_BYTES
    if total is None:
        return free_bytes // 2
    spared = max(needs, int(total * (1 - options.gpu_memory_utilization)))
    return max(0, free_bytes - spared)
