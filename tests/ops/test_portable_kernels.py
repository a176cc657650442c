"""What the portable kernels refuse, and with which unit of the GPU they multiply."""

from collections import defaultdict
from typing import Any

import pytest
import torch

from deepinfer.bench import cases
from deepinfer.bench.simulate.setup import release_arch
from deepinfer.model.numerics import CHECKPOINT
from deepinfer.model.operations import OPS, Operations
from deepinfer.ops.experts import ExpertWeights, experts
from deepinfer.ops.formats import Fp4Weight
from deepinfer.ops.mhc_boundary import mhc_boundary
from deepinfer.ops.registry import Op
from deepinfer.ops.sparse_attention import sparse_attention

pytest.importorskip("triton")
from deepinfer.ops import aot, aot_portable
from deepinfer.ops.experts import portable as expert_kernels

FACTS: dict[str, Any] = {
    "arch": "sm100", "quantised": True, "hidden": 5120, "inner": 2304, "streams": 4,
    "head_dim": 512,
}  # fmt: skip


@pytest.mark.parametrize("op", [experts, mhc_boundary, sparse_attention], ids=lambda op: op.name)
@pytest.mark.parametrize("arch", ["sm100", "sm103", "sm90"])
def test_portable_kernels_come_after_those_for_hopper_and_before_the_reference(op, arch):
    wanted = "triton" if arch == "sm90" else "portable"
    assert op.bind(**dict(FACTS, arch=arch)).implementation.name == wanted
    assert op.bind("portable", **dict(FACTS, arch=arch)).implementation.graph_safe


@pytest.mark.parametrize(
    ("op", "changes", "why"),
    [
        (experts, {"arch": "sm80"}, "not sm80"),
        (experts, {"quantised": False}, "FP4 weights"),
        (experts, {"hidden": 320}, "hidden 320"),
        (experts, {"inner": 96}, "inner 96"),
        (mhc_boundary, {"arch": "cpu"}, "not cpu"),
        (mhc_boundary, {"quantised": False}, "bf16"),
        (mhc_boundary, {"streams": 2}, "2 streams"),
        (sparse_attention, {"arch": "sm120"}, "not sm120"),
        (sparse_attention, {"quantised": False}, "quantised"),
        (sparse_attention, {"head_dim": 96}, "head_dim 96"),
    ],
)
def test_what_they_cannot_do_is_refused_with_the_reason(op: Op, changes: dict[str, Any], why: str):
    kernel = next(i for i in op.implementations if i.name == "portable")
    assert kernel.refuses(**FACTS) is None
    assert why in str(kernel.refuses(**dict(FACTS, **changes)))


@pytest.mark.parametrize("byte", [33, 161])
def test_packing_refuses_scales_out_of_range_but_not_those_of_zeros(byte):
    weights = cases.expert_weights(2, 128, 128, torch.device("cpu"))
    assert isinstance(weights.w2, Fp4Weight)
    weights.w2.scale[1, 3, 2] = byte
    codes = weights.w2.codes.unflatten(2, (-1, 16))
    codes[1, 3, 2, 0] = 0x10
    with pytest.raises(ValueError, match=f"scale bytes .*{byte}"):
        expert_kernels.pack(weights)
    codes[1, 3, 2] = 0x88  # negative zeros
    packed = expert_kernels.pack(weights).w2
    assert isinstance(packed, Fp4Weight)
    assert packed.scale[1, 3, 2] == 127
    with pytest.raises(ValueError, match="FP4 weights only"):
        expert_kernels.pack(ExpertWeights(torch.ones(1, 4, 4), torch.ones(1, 4, 4)))


@pytest.mark.slow
def test_a_product_has_one_unit_of_the_gpu_for_all_tiles():
    """Units differ in the order of their sums, so with two of them tiles would change bits."""
    tokens = [1, 20, 64, 1024]
    products: dict[tuple[str, int], dict[frozenset[str], str]] = defaultdict(dict)
    for variant in aot.variants(aot_portable.portable_launches(tokens)):
        for target in aot.TARGETS if "portable" in variant.name else ():
            done = aot.compile_for(variant, target)
            assert not done.error, f"{variant.name} sm{target}: {done.error}"
            assert not done.unawaited, f"{variant.name}: {variant.describe()}"
            products[variant.name, target][done.units] = variant.describe()
    for (name, target), units in products.items():
        assert len(units) == 1, f"{name} sm{target}: {units}"
    assert products["experts.portable._down", 90].keys() == {frozenset({"wgmma.mma_async"})}


@pytest.mark.parametrize("device_arch", ["sm90", "sm100", "sm103"])
def test_no_operation_of_the_release_falls_back_on_a_gpu(device_arch):
    bound = Operations.bind(release_arch(), CHECKPOINT, device_arch)
    chosen = {name: getattr(bound, name).implementation for name in OPS}
    assert [name for name, one in chosen.items() if one.name == "reference"] == []
    assert all(one.graph_safe for one in chosen.values())
