"""Device memory of requests: the page pool and the slot pool, seen layer by layer.

Knows nothing of who owns which page or slot. Layouts: `deepinfer.arch.layout`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from deepinfer.arch import Arch, OwnerSection, PageLayout, Records, SlotLayout
from deepinfer.ops.batch import PageViews


@dataclass(frozen=True)
class State:
    """Pools as raw bytes, and views into them.

    Attributes:
        pages: [pages, page bytes] uint8; page 0 is reserved.
        slots: [slots, slot bytes] uint8; slot 0 is reserved.
        windows: one ring a layer, [slots, ring rows, record bytes].
        drafts: one ring a draft stage, likewise.
        pairs: owner layer -> [slots, pair rows, 2, head_dim] fp32 (ratio-2 owners).
        owners: owner layer -> its page sections.
    """

    records: Records
    pages: Tensor
    slots: Tensor
    windows: tuple[Tensor, ...]
    drafts: tuple[Tensor, ...]
    pairs: dict[int, Tensor]
    owners: dict[int, PageViews]

    @classmethod
    def allocate(
        cls, arch: Arch, records: Records, *, pages: int, slots: int, device: torch.device | str
    ) -> State:
        """Pools of `pages` pages and `slots` slots, the reserved ones included.

        They are not cleared: nothing reads a byte that its request did not write.
        """
        page_layout, slot_layout = PageLayout.of(arch, records), SlotLayout.of(arch, records)
        page_pool = torch.empty(pages, page_layout.bytes, dtype=torch.uint8, device=device)
        slot_pool = torch.empty(slots, slot_layout.bytes, dtype=torch.uint8, device=device)
        ring = slot_layout.ring_rows
        width = records.window.bytes

        def rings(offsets: tuple[int, ...]) -> tuple[Tensor, ...]:
            return tuple(_rows(slot_pool, at, ring, width) for at in offsets)

        pair_rows = slot_layout.pair_rows
        pairs = {
            layer: _rows(slot_pool, at, pair_rows, 8 * arch.head_dim)
            .view(torch.float32)
            .unflatten(-1, (2, arch.head_dim))
            for layer, at in zip(slot_layout.pair_layers, slot_layout.pairs, strict=True)
        }
        owners = {
            section.layer: _sections(page_pool, section, records) for section in page_layout.owners
        }
        return cls(
            records,
            page_pool,
            slot_pool,
            rings(slot_layout.window),
            rings(slot_layout.draft),
            pairs,
            owners,
        )


def _rows(pool: Tensor, offset: int, rows: int, width: int) -> Tensor:
    """View [items, rows, width] of the bytes [offset, offset + rows * width) of every item."""
    return pool[:, offset : offset + rows * width].unflatten(1, (rows, width))


def _sections(pool: Tensor, section: OwnerSection, records: Records) -> PageViews:
    key, entries = records.index_key, section.entries
    scales = (
        _rows(pool, section.key_scales, entries, key.scale_bytes)
        if key.scale_bytes
        else pool.new_empty(len(pool), entries, 0)
    )
    return PageViews(
        latents=_rows(pool, section.latents, entries, records.latent.bytes),
        key_codes=_rows(pool, section.key_codes, entries, key.code_bytes),
        key_scales=scales,
    )
