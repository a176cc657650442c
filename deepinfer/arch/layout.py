"""Byte layouts of pages and slots, derived from the architecture. Torch-free.

A page holds the compressed entries and index keys of `PAGE_TOKENS` tokens for every owner layer;
the same bytes lie on the device, on the host, in files and on the wire. A slot holds what one
request keeps besides: window rings, draft rings and open compressor pairs.
Source: `spec/model-decisions.md` D55-D57.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from deepinfer.arch.spec import Arch

PAGE_TOKENS = 128
SECTION_ALIGN = 32  # bytes; every section of a page or slot starts at a multiple of it

RecordFormat = Literal["fp8_ue8m0_32", "fp4_e4m3_16", "fp4_ue8m0_32", "fp32"]
"""How one cached vector is stored: codes, then one scale byte a group of that many channels.

"fp32" keeps the plain vector (debug numerics without quantisers).
"""


@dataclass(frozen=True)
class Record:
    """Bytes of one cached vector of `width` channels."""

    format: RecordFormat
    width: int

    @property
    def code_bytes(self) -> int:
        """Bytes of the codes, which come first."""
        if self.format == "fp32":
            return 4 * self.width
        return self.width if self.format == "fp8_ue8m0_32" else self.width // 2

    @property
    def scale_bytes(self) -> int:
        """Bytes of the scales, one a channel group; none for fp32."""
        if self.format == "fp32":
            return 0
        return self.width // (16 if self.format == "fp4_e4m3_16" else 32)

    @property
    def bytes(self) -> int:
        """Bytes of codes and scales together."""
        return self.code_bytes + self.scale_bytes


@dataclass(frozen=True)
class Records:
    """The three record kinds of a cache: window and draft keys, latents, index keys."""

    window: Record
    latent: Record
    index_key: Record

    @classmethod
    def of(cls, arch: Arch, *, quantised: bool = True) -> Records:
        """Records of the release, or plain fp32 vectors when `quantised` is False."""
        if not quantised:
            wide = Record("fp32", arch.head_dim)
            return cls(wide, wide, Record("fp32", arch.index_head_dim))
        return cls(
            window=Record("fp8_ue8m0_32", arch.head_dim),
            latent=Record("fp4_e4m3_16", arch.head_dim),
            index_key=Record("fp4_ue8m0_32", arch.index_head_dim),
        )


@dataclass(frozen=True)
class OwnerSection:
    """Where one owner layer's entries lie in a page; offsets and `end` in bytes.

    Latents are `entries` consecutive records (codes, then scales). Index keys are stored apart:
    all codes at `key_codes`, then all scales at `key_scales`.
    """

    layer: int
    ratio: int
    entries: int
    latents: int
    key_codes: int
    key_scales: int
    end: int


@dataclass(frozen=True)
class PageLayout:
    """Sections of a page of `PAGE_TOKENS` tokens, in owner order; `bytes` is the page size."""

    records: Records
    owners: tuple[OwnerSection, ...]
    bytes: int

    @classmethod
    def of(cls, arch: Arch, records: Records | None = None) -> PageLayout:
        """Lay out a page of `arch`; `records` defaults to those of the release."""
        records = records or Records.of(arch)
        latent, key = records.latent, records.index_key
        offset = 0
        owners: list[OwnerSection] = []
        for layer in arch.kv_source_layer_ids:
            ratio = arch.compress_ratios[layer]
            entries = PAGE_TOKENS // ratio
            latents = offset
            key_codes = _align(latents + entries * latent.bytes)
            key_scales = _align(key_codes + entries * key.code_bytes)
            end = key_scales + entries * key.scale_bytes
            owners.append(OwnerSection(layer, ratio, entries, latents, key_codes, key_scales, end))
            offset = _align(end)
        return cls(records, tuple(owners), offset)

    def owner(self, layer: int) -> OwnerSection:
        """The section of owner `layer`; KeyError if it owns no entries."""
        for section in self.owners:
            if section.layer == layer:
                return section
        raise KeyError(f"layer {layer} owns no compressed entries")

    @property
    def bytes_per_token(self) -> float:
        """Cache bytes a token, alignment gaps left out (890 in the release)."""
        record = self.records.latent.bytes + self.records.index_key.bytes
        return sum(record / section.ratio for section in self.owners)


@dataclass(frozen=True)
class SlotLayout:
    """Sections of a slot, offsets in bytes.

    `window` and `draft`: one ring of `ring_rows` window records a layer or stage, row = position
    mod `ring_rows`. `pairs`: for each ratio-2 owner (in `pair_layers` order) a ring of `pair_rows`
    rows, each `head_dim` fp32 values followed by `head_dim` fp32 gates, row = position mod
    `pair_rows`.
    """

    record: Record
    ring_rows: int
    pair_rows: int
    pair_layers: tuple[int, ...]
    window: tuple[int, ...]
    draft: tuple[int, ...]
    pairs: tuple[int, ...]
    bytes: int

    @classmethod
    def of(cls, arch: Arch, records: Records | None = None) -> SlotLayout:
        """Lay out a slot of `arch`; `records` defaults to those of the release."""
        record = (records or Records.of(arch)).window
        ring = _align(arch.ring_rows * record.bytes)
        pair = _align(arch.pair_rows * 2 * 4 * arch.head_dim)
        stages = 0 if arch.draft is None else arch.draft.stages
        pair_layers = tuple(
            layer for layer in arch.kv_source_layer_ids if arch.compress_ratios[layer] == 2
        )
        window = tuple(ring * i for i in range(arch.num_hidden_layers))
        after_window = ring * arch.num_hidden_layers
        draft = tuple(after_window + ring * i for i in range(stages))
        after_draft = after_window + ring * stages
        pairs = tuple(after_draft + pair * i for i in range(len(pair_layers)))
        total = after_draft + pair * len(pair_layers)
        return cls(record, arch.ring_rows, arch.pair_rows, pair_layers, window, draft, pairs, total)


def _align(offset: int) -> int:
    return -(-offset // SECTION_ALIGN) * SECTION_ALIGN
