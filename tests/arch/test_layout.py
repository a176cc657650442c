"""Pages and slots: the tables of the release, and what holds for every architecture."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepinfer.arch import PAGE_TOKENS, Arch, PageLayout, Record, Records, SlotLayout
from deepinfer.arch.layout import SECTION_ALIGN
from tests.arch.configs import release_arch, small_archs


def test_records_of_the_release():
    records = Records.of(release_arch())
    assert (records.window.code_bytes, records.window.scale_bytes) == (512, 16)
    assert (records.latent.code_bytes, records.latent.scale_bytes) == (256, 32)
    assert (records.index_key.code_bytes, records.index_key.scale_bytes) == (64, 4)
    assert [r.bytes for r in (records.window, records.latent, records.index_key)] == [528, 288, 68]


def test_page_table_of_the_release():
    # model.md 12.1: entries, latents at, key codes at, key scales at, end.
    page = PageLayout.of(release_arch())
    assert {
        s.layer: (s.entries, s.latents, s.key_codes, s.key_scales, s.end) for s in page.owners
    } == {
        2: (64, 0, 18_432, 22_528, 22_784),
        8: (64, 22_784, 41_216, 45_312, 45_568),
        14: (64, 45_568, 64_000, 68_096, 68_352),
        20: (128, 68_352, 105_216, 113_408, 113_920),
    }
    assert page.bytes == 113_920
    assert page.bytes_per_token == 890
    assert page.bytes == PAGE_TOKENS * 890


def test_slot_table_of_the_release():
    slot = SlotLayout.of(release_arch())
    assert (slot.ring_rows, slot.pair_rows) == (140, 14)
    assert slot.pair_layers == (2, 8, 14)
    assert slot.window == tuple(73_920 * i for i in range(40))
    assert slot.draft == tuple(2_956_800 + 73_920 * i for i in range(3))
    assert slot.pairs == tuple(3_178_560 + 57_344 * i for i in range(3))
    assert slot.bytes == 3_350_592


def test_fp32_records_hold_plain_vectors():
    records = Records.of(release_arch(), quantised=False)
    assert [r.bytes for r in (records.window, records.latent, records.index_key)] == [
        2048,
        2048,
        512,
    ]
    assert PageLayout.of(release_arch(), records).bytes_per_token == 2.5 * (2048 + 512)


def sections(page: PageLayout) -> list[tuple[int, int]]:
    """(start, end) of every section of a page, in the order of the layout."""
    spans: list[tuple[int, int]] = []
    latent, key = page.records.latent, page.records.index_key
    for s in page.owners:
        spans.append((s.latents, s.latents + s.entries * latent.bytes))
        spans.append((s.key_codes, s.key_codes + s.entries * key.code_bytes))
        spans.append((s.key_scales, s.key_scales + s.entries * key.scale_bytes))
    return spans


def assert_disjoint_and_aligned(spans: list[tuple[int, int]], total: int) -> None:
    ends = [0, *(end for _, end in spans)]
    for (start, end), previous in zip(spans, ends, strict=False):
        assert start % SECTION_ALIGN == 0
        assert previous <= start < previous + SECTION_ALIGN  # ordered, gaps only for alignment
        assert start < end or start == end
    assert ends[-1] <= total < ends[-1] + SECTION_ALIGN


@given(small_archs, st.booleans())
def test_page_sections_are_disjoint_aligned_and_fill_the_page(arch: Arch, quantised: bool):
    page = PageLayout.of(arch, Records.of(arch, quantised=quantised))
    assert tuple(s.layer for s in page.owners) == arch.kv_source_layer_ids
    assert all(s.entries * s.ratio == PAGE_TOKENS for s in page.owners)
    assert_disjoint_and_aligned(sections(page), page.bytes)
    assert [s.end for s in page.owners] == [end for _, end in sections(page)[2::3]]


@given(small_archs)
def test_bytes_per_token_are_the_page_without_its_gaps(arch: Arch):
    page = PageLayout.of(arch)
    filled = sum(end - start for start, end in sections(page))
    assert page.bytes_per_token * PAGE_TOKENS == filled
    assert page.bytes - filled < SECTION_ALIGN * (3 * len(page.owners) + 1)


@given(small_archs)
def test_owner_finds_its_section_and_refuses_other_layers(arch: Arch):
    page = PageLayout.of(arch)
    for layer in arch.layers:
        if layer.owns_kv:
            assert page.owner(layer.index).ratio == layer.ratio
        else:
            with pytest.raises(KeyError, match=f"layer {layer.index} owns no"):
                page.owner(layer.index)


@given(small_archs, st.booleans())
def test_slot_sections_are_disjoint_aligned_and_fill_the_slot(arch: Arch, quantised: bool):
    slot = SlotLayout.of(arch, Records.of(arch, quantised=quantised))
    stages = 0 if arch.draft is None else arch.draft.stages
    assert len(slot.window) == arch.num_hidden_layers
    assert len(slot.draft) == stages
    assert slot.pair_layers == tuple(
        layer.index for layer in arch.layers if layer.owns_kv and layer.ratio == 2
    )
    ring = slot.ring_rows * slot.record.bytes
    pair = slot.pair_rows * 2 * arch.head_dim * 4
    spans = [(start, start + ring) for start in slot.window + slot.draft]
    spans += [(start, start + pair) for start in slot.pairs]
    assert_disjoint_and_aligned(spans, slot.bytes)


@given(small_archs)
def test_rings_keep_a_window_while_two_steps_are_under_way(arch: Arch):
    # D55: the oldest row that a running step reads must survive what the next step writes.
    step = arch.max_draft + 1
    slot = SlotLayout.of(arch)
    for committed in range(3 * slot.ring_rows):
        running = range(committed, committed + step)
        planned = range(committed + step, committed + 2 * step)
        needed = range(max(0, committed - arch.sliding_window + 1), committed)
        rows = [position % slot.ring_rows for position in (*needed, *running, *planned)]
        assert len(set(rows)) == len(rows)
    assert slot.pair_rows >= 2 + 2 * step - 1


@given(st.sampled_from(["fp8_ue8m0_32", "fp4_e4m3_16", "fp4_ue8m0_32"]), st.integers(1, 40))
def test_a_record_is_codes_and_one_scale_byte_a_group(name: str, groups: int):
    record = Record(name, 32 * groups)  # pyright: ignore[reportArgumentType]
    bits, group = {"fp8_ue8m0_32": (8, 32), "fp4_e4m3_16": (4, 16), "fp4_ue8m0_32": (4, 32)}[name]
    assert record.bytes == record.width * bits // 8 + record.width // group
