"""How the portable linear kernels cut their work, what they pack, and what they refuse."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from deepinfer.bench import cases
from deepinfer.ops.formats import Fp8Weight
from deepinfer.ops.grouped_output import grouped_output
from deepinfer.ops.linear_fp8 import linear_fp8
from deepinfer.ops.low_rank import low_rank
from deepinfer.ops.portable import refuses_arch
from deepinfer.ops.registry import Op
from deepinfer.ops.shared_expert import shared_expert

pytest.importorskip("triton")
from deepinfer.ops import aot, aot_portable
from deepinfer.ops import portable_product as product

CPU = torch.device("cpu")
OPS = (grouped_output, linear_fp8, low_rank, shared_expert)
FACTS: dict[str, Any] = {
    "arch": "sm100",
    "quantised": True,
    "hidden": 5120,
    "inner": 2304,
    "head_dim": 512,
    "heads": 64,
    "rank": 1280,
    "o_rank": 1024,
    "o_groups": 8,
    "linear_shapes": ((1280, 5120), (32768, 1280)),
}


def why_not(op: Op, **changed: Any) -> str:
    found = next(i for i in op.implementations if i.name == "portable")
    return found.refuses(**FACTS | changed) or ""


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_they_serve_the_release_wherever_hopper_kernels_do_not(op):
    for arch, chosen in {"sm90": "triton", "sm100": "portable", "sm103": "portable"}.items():
        assert op.bind(**FACTS | {"arch": arch}).implementation.name == chosen
        assert not why_not(op, arch=arch)
    assert "not cpu" in why_not(op, arch="cpu")
    assert "FP8 weights" in why_not(op, quantised=False)
    for arch in ("sm80", "sm120", "cpu"):
        assert arch in str(refuses_arch(arch))


@pytest.mark.parametrize(
    ("op", "changed", "reason"),
    [
        (linear_fp8, {"linear_shapes": ((128, 128), (80, 128))}, r"[80, 128]"),
        (linear_fp8, {"linear_shapes": ((128, 192),)}, r"[128, 192]"),
        (low_rank, {"hidden": 192}, r"[1280, 192]"),
        (low_rank, {"head_dim": 48}, r"[48, 5120]"),
        (shared_expert, {"inner": 96}, r"[5120, 96]"),
        (grouped_output, {"o_rank": 40}, r"8 groups: [40, 4096]"),
        (grouped_output, {"heads": 6, "head_dim": 96, "o_groups": 3}, r"3 groups: [1024, 192]"),
        (grouped_output, {"o_groups": 0}, "no groups"),
        (grouped_output, {"hidden": 100}, r"[100, 8192]"),
    ],
)
def test_sizes_that_no_tile_takes_are_refused_by_name(op, changed, reason):
    assert reason in why_not(op, **changed)


@settings(max_examples=100, deadline=None)
@given(
    out=st.integers(1, 1100).map(lambda n: 32 * n),
    columns=st.integers(1, 120).map(lambda n: 128 * n),
    groups=st.sampled_from([1, 3, 8]),
)
def test_segments_are_equal_parts_of_whole_steps_and_fill_the_device_if_they_can(
    out, columns, groups
):
    count, steps = product.segments(out, columns, groups), columns // 128
    assert steps % count == 0
    assert count == 1 or steps // count >= 3
    tiles = groups * -(-out // 128)
    more = [n for n in range(count + 1, steps // 3 + 1) if steps % n == 0]
    assert count * tiles >= 240 or not more


@settings(max_examples=100, deadline=None)
@given(tokens=st.integers(1, 5000), count=st.integers(1, 10))
def test_a_tile_of_few_tokens_is_no_wider_than_it_must_be(tokens, count):
    tile = product.choose(tokens, count)
    assert tile.tokens in (16, 32, 64, 128)
    assert tokens <= tile.tokens or tokens > 64
    assert tile.tokens < max(17, 2 * tokens)
    assert not tile.whole or (tokens > 256 and count > 1)


def test_a_packed_weight_holds_the_columns_of_a_thread_side_by_side():
    weight = cases.fp8_weight(64, 256, CPU)
    packed = product.pack(weight)
    assert torch.equal(packed.scale, weight.scale)
    for place in range(256):
        block, thread, eight, half = place // 64, place // 16 % 4, place // 2 % 8, place % 2
        column = 64 * block + 8 * eight + 2 * thread + half
        assert torch.equal(packed.codes[:, place], weight.codes[:, column])


def test_weights_outside_the_kernels_range_are_refused():
    weight = cases.fp8_weight(64, 128, CPU)
    with pytest.raises(ValueError, match="FP8 weights only; use reference"):
        product.pack(torch.zeros(64, 128))
    with pytest.raises(ValueError, match=r"\[16, 128\] is no multiple of \[32, 128\]"):
        product.pack(Fp8Weight(weight.codes[:16], weight.scale[:1]))
    for byte in (9, 135):
        with pytest.raises(ValueError, match=f"scale bytes {byte} to {byte} go beyond"):
            product.pack(weight._replace(scale=torch.full_like(weight.scale, byte)))


def test_a_step_beyond_32_bit_offsets_is_refused():
    x = torch.empty((2**18, 2**13), dtype=torch.bfloat16, device="meta")
    weight = Fp8Weight(
        torch.empty((64, 2**13), dtype=torch.uint8, device="meta"),
        torch.empty((2, 2**8), dtype=torch.uint8, device="meta"),
    )
    with pytest.raises(ValueError, match="262144 tokens in one call; split the step"):
        product.unsummed(x, weight)


@pytest.mark.parametrize("target", aot.TARGETS)
def test_every_tile_compiles_to_one_kind_of_instruction_and_waits_for_it(target):
    calls = aot_portable.portable_launches([1, 32, 64, 128, 4096])
    listed = aot.variants({k: v for k, v in calls.items() if "linear of plain input" in k})
    products = [v for v in listed if v.name == "portable_product._product"]
    assert len(products) == 5
    unit = "wgmma.mma_async" if target < 100 else "tcgen05.mma"
    for variant in products:
        done = aot.compile_for(variant, target)
        assert (done.error, done.stack, done.unawaited) == ("", 0, 0)
        assert done.units == {unit}
