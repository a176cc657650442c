"""Layer roles and lengths that follow from them."""

from hypothesis import given

from deepinfer.arch import Arch
from tests.arch.configs import release_arch, small_archs


def test_layer_roles_of_the_release():
    # model.md 6.2, row by row: (ratio, owner of the entries, source of the selection, mode).
    roles = {
        layer.index: (layer.ratio, layer.kv_source, layer.index_source, layer.mode)
        for layer in release_arch().layers
    }
    expected: dict[int, tuple[int, int | None, int | None, str]] = {
        0: (0, None, None, "window"),
        1: (0, None, None, "window"),
    }
    for owner, last in ((2, 7), (8, 13), (14, 19)):
        expected[owner] = (2, owner, owner, "full")
        expected |= dict.fromkeys(range(owner + 1, last + 1), (2, owner, owner, "reuse"))
    expected[20] = (1, 20, 20, "full")
    expected |= dict.fromkeys((21, 22, 23), (1, 20, 20, "reuse"))
    for source in (24, 28, 32, 36):
        expected[source] = (1, 20, source, "reindex")
        expected |= dict.fromkeys(range(source + 1, source + 4), (1, 20, source, "reuse"))
    assert roles == expected


def test_lengths_of_the_release():
    arch = release_arch()
    assert arch.boundary_layer == 20
    assert arch.candidate_source_layer_id == 20
    assert [layer.index for layer in arch.layers if layer.engram is not None] == [1, 14]
    assert (arch.ring_rows, arch.pair_rows, arch.decoder_keep) == (140, 14, 140)
    assert arch.hc_coefficients == 24
    assert arch.index_scale == 2**-6
    assert arch.softmax_scale == 512**-0.5


@given(small_archs)
def test_every_compressed_layer_reads_the_nearest_source_at_or_below_it(arch: Arch):
    for layer in arch.layers:
        if layer.ratio == 0:
            assert (layer.kv_source, layer.index_source, layer.mode) == (None, None, "window")
            continue
        assert layer.kv_source is not None
        assert layer.index_source is not None
        between = range(layer.kv_source + 1, layer.index + 1)
        assert not set(between) & set(arch.kv_source_layer_ids)
        between = range(layer.index_source + 1, layer.index + 1)
        assert not set(between) & set(arch.index_source_layer_ids)
        assert layer.index_source >= layer.kv_source
        assert arch.layers[layer.kv_source].ratio == layer.ratio
        assert layer.owns_kv == (layer.mode == "full")
        assert layer.selects == (layer.mode in ("full", "reindex"))


@given(small_archs)
def test_the_boundary_is_the_first_layer_that_keeps_every_token(arch: Arch):
    singles = [layer.index for layer in arch.layers if layer.ratio == 1]
    assert arch.boundary_layer == (singles[0] if singles else None)
    if singles:
        assert arch.layers[singles[0]].owns_kv
