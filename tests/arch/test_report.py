"""The report of `deepinfer inspect`."""

import json

from hypothesis import given

from deepinfer.arch import Arch, PageLayout, SlotLayout, tensor_specs
from deepinfer.arch.report import format_report, report, report_json
from tests.arch.configs import release_arch, small_archs


def test_report_of_the_release():
    facts = report(release_arch())
    assert (facts.total.params, facts.total.bytes) == (763_205_315_794, 510_286_023_000)
    layer = {share.name: share for share in facts.layer}
    assert layer["attention"].params == 126_615_552
    assert layer["one routed expert"].params == 35_389_440
    assert layer["one routed expert"].bytes == 18_800_640
    assert layer["routed experts"].params == 384 * 35_389_440
    assert layer["shared expert"].params == 35_389_440
    roles = {share.name: share.params for share in facts.roles}
    assert roles["engram tables"] == 196_613_849_600


def test_active_parameters_of_the_release():
    # model.md 15.1: 377.3 M a layer, 7.89 B for a prefill token, 16.13 B for a decode token.
    active = report(release_arch()).active
    layer = 126_615_552 + 7 * 35_389_440 + 1_966_848 + 983_094
    assert active.per_layer == layer
    engram = 2 * (25_600 * 6_144 + 2 * 4 * 5_120)
    keys = 5_120 * 512 + 512 + 128 * 512 + 128  # ratio-1 compressor: wkv, norm, wk, k_norm
    selection = 32 * 128 * 1_280 + 32 * 5_120
    assert active.prefill == 20 * layer + engram + 3 * (keys + 5_120 * 512 + selection)
    assert active.decode == active.prefill + 20 * layer + keys + 5 * selection + 129_280 * 5_120
    assert round(active.prefill / 1e9, 2) == 7.89
    assert round(active.decode / 1e9, 2) == 16.13


def test_text_of_the_release_names_the_published_numbers():
    text = format_report(report(release_arch()))
    for words in (
        "763.2 B parameters (763,205,315,794)",
        "510.29 GB (510,286,023,000 bytes)",
        "890 B a token, 113,920 B a page of 128 tokens",
        "3,350,592 B a slot",
        "7.89 B a prefill token, 16.13 B a decode token",
    ):
        assert words in text
    assert all(len(line) <= 100 for line in text.splitlines())


@given(small_archs)
def test_shares_add_up_to_the_total(arch: Arch):
    facts = report(arch)
    specs = tensor_specs(arch)
    assert facts.total.bytes == sum(spec.bytes for spec in specs)
    for shares in (facts.parts, facts.dtypes, facts.roles):
        assert sum(s.tensors for s in shares) == facts.total.tensors
        assert sum(s.params for s in shares) == facts.total.params
        assert sum(s.bytes for s in shares) == facts.total.bytes


@given(small_archs)
def test_cache_of_the_report_is_that_of_the_layouts(arch: Arch):
    cache = report(arch).cache
    page, slot = PageLayout.of(arch), SlotLayout.of(arch)
    assert (cache.page_bytes, cache.slot_bytes) == (page.bytes, slot.bytes)
    assert sum(r.count * r.ring_bytes for r in cache.rings) == slot.bytes
    for context in cache.contexts:
        assert context.bytes == context.page_bytes + slot.bytes
        assert context.page_bytes == context.pages * page.bytes
        assert 0 <= context.pages * 128 - context.tokens < 128
        assert context.tokens <= arch.max_position_embeddings


@given(small_archs)
def test_active_parameters_stay_within_the_stored_ones(arch: Arch):
    active = report(arch).active
    assert active.per_layer > 0
    assert active.prefill <= active.decode
    backbone = [s.params for s in report(arch).parts if s.name in ("embedding", "backbone")]
    assert active.decode <= sum(backbone)


@given(small_archs)
def test_json_holds_the_same_numbers(arch: Arch):
    facts = report(arch)
    data = json.loads(report_json(facts))
    assert data["total"]["params"] == facts.total.params
    assert data["active"] == {
        "per_layer": facts.active.per_layer,
        "prefill": facts.active.prefill,
        "decode": facts.active.decode,
    }
    assert [o["end"] for o in data["cache"]["owners"]] == [o.end for o in facts.cache.owners]
    assert format_report(facts)
