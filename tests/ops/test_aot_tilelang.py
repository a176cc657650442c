"""Every TileLang kernel is lowered for GPUs and for Ascend, without a device or a toolkit."""

import pytest

pytest.importorskip("tilelang")
from deepinfer.model.operations import OPS
from deepinfer.ops import aot_tilelang
from deepinfer.ops.tilelang_refusals import SERVED

NAMES = sorted(aot_tilelang.descriptions())
# Tiles that a kernel brings to the vector cores and takes from them; what a product moves beside.
TILES = {
    "add_outputs": {"gm2ub": 2, "ub2gm": 1},
    "linear_fp8": {"gm2ub": 2, "ub2l1": 2, "l0c2gm": 1},
    "mhc_collapse": {"gm2ub": 2, "ub2gm": 2},
    "mhc_update": {"gm2ub": 2, "ub2gm": 1},
    "norm_quantise": {"gm2ub": 2, "ub2gm": 3},
    "stream_mean": {"gm2ub": 1, "ub2gm": 1},
}


def test_every_operation_with_a_tilelang_kernel_is_lowered():
    registered = [
        n for n, op in OPS.items() if any(i.name == "tilelang" for i in op.implementations)
    ]
    assert sorted(registered) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_ascend_source_has_the_kernel_its_copies_and_its_order(name):
    done = aot_tilelang.lower(name, "ascend")
    assert not done.error
    assert done.has_kernel
    forms = ("gm2ub", "ub2gm", "ub2l1", "l0c2gm")
    assert {f: n for f in forms if (n := done.copies(f))} == TILES[name]
    assert "tl_templates/ascend/common.h" in done.source
    assert "asc_vf_call<" in done.source  # vector cores compute
    assert done.source.count("asc_sync_wait(") >= 2  # copies and cores wait for each other
    assert ("ascend_gemm_l1<" in done.source) == (name == "linear_fp8")
    assert "block_idx)) >> 6)" in done.source  # a core takes every 64th program


@pytest.mark.parametrize("machine", [m for m in SERVED if m != "ascend"])
@pytest.mark.parametrize("name", NAMES)
def test_cuda_source_has_the_kernel_and_multiplies_on_the_tensor_cores(name, machine):
    done = aot_tilelang.lower(name, machine)
    assert not done.error
    assert done.has_kernel
    assert ("mma" in done.source) == (name == "linear_fp8")


def test_nvcc_compiles_what_was_lowered():
    if not aot_tilelang.can_compile():
        pytest.skip("no nvcc here")
    done = aot_tilelang.lower("mhc_update", "sm90", compiles=True)
    assert done.compiled
    assert not done.error


def test_a_kernel_that_cannot_be_lowered_is_reported_and_does_not_raise(monkeypatch):
    listed = aot_tilelang.descriptions()
    wanted = listed["stream_mean"]
    broken = aot_tilelang.Description(wanted.describe, dict(wanted.sizes, width=48))
    monkeypatch.setattr(aot_tilelang, "descriptions", lambda: dict(listed, stream_mean=broken))
    done = aot_tilelang.lower("stream_mean", "sm90")
    assert done.error
    assert not done.has_kernel
