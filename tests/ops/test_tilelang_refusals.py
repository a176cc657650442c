"""What the TileLang kernels refuse, and that the release gets none of them by itself."""

from typing import Any

import pytest

from deepinfer.bench.slices import slice_arch
from deepinfer.model.numerics import CHECKPOINT, NOQUANT
from deepinfer.model.operations import OPS, Operations
from deepinfer.ops import tilelang_refusals

FACTS: dict[str, Any] = {
    "arch": "ascend",
    "quantised": True,
    "hidden": 5120,
    "rank": 1280,
    "linear_shapes": ((1280, 5120), (512, 5120)),
}
RULES = (tilelang_refusals.streams, tilelang_refusals.query, tilelang_refusals.linear)
KERNELS = {n for n, op in OPS.items() if any(i.name == "tilelang" for i in op.implementations)}


@pytest.mark.parametrize("rule", RULES)
def test_the_release_is_served_on_gpus_and_ascend_and_nowhere_else(rule):
    for arch in ("ascend", "sm90", "sm100", "sm103"):
        assert rule(**FACTS | {"arch": arch}) is None
    for arch in ("cpu", "sm80"):
        assert arch in str(rule(**FACTS | {"arch": arch}))
    assert "bf16" in str(rule(**FACTS | {"quantised": False}))


def test_sizes_that_do_not_fit_are_named():
    assert "hidden 100" in str(tilelang_refusals.streams(**dict(FACTS, hidden=100)))
    shapes: dict[str, Any] = {"linear_shapes": ((64, 64), (64, 48))}
    assert "rows of 544" in str(tilelang_refusals.query(**dict(FACTS, rank=544)))
    assert "64 x 48" in str(tilelang_refusals.linear(**dict(FACTS, **shapes)))


@pytest.mark.parametrize("numerics", [CHECKPOINT, NOQUANT])
@pytest.mark.parametrize("arch", ["cpu", "sm90", "sm100"])
def test_elsewhere_than_on_ascend_the_release_gets_none_unless_it_asks(arch, numerics):
    pytest.importorskip("triton")
    bound = Operations.bind(slice_arch("ep64"), numerics, arch)
    assert len(KERNELS) == 6
    for name in KERNELS:
        assert getattr(bound, name).implementation.name != "tilelang"
        listed = [i.name for i in OPS[name].implementations]
        assert listed[-1] == "tilelang"
