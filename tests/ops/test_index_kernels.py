"""What the index kernels refuse, and how long rows are cut."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from deepinfer.bench.slices import slice_arch
from deepinfer.model.numerics import CHECKPOINT
from deepinfer.model.operations import Operations

pytest.importorskip("triton")
from deepinfer.ops import gluon_best
from deepinfer.ops.cases import Maker
from deepinfer.ops.index_select import CandidateRule, cases, hopper
from tests.ops.small import SMALL

FACTS: dict[str, Any] = {
    "arch": "sm90",
    "quantised": True,
    "index_shape": (32, 128),
    "index_most": 2048,
}


def test_the_release_is_served():
    assert hopper.refuses(**FACTS) is None
    few: dict[str, Any] = {**FACTS, "index_shape": (16, 128)}
    assert hopper.refuses(**few) is None


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"arch": "sm100"}, "not sm100"),
        ({"arch": "cpu"}, "not cpu"),
        ({"quantised": False}, "quantised"),
        ({"index_shape": (32, 64)}, "32 heads of 64"),
        ({"index_shape": (64, 128)}, "64 heads of 128"),
        ({"index_most": 2049}, "2049 ids"),
    ],
)
def test_what_the_kernel_cannot_do_is_refused_with_a_reason(change, why):
    assert why in (hopper.refuses(**FACTS | change) or "")


def test_on_hopper_the_release_gets_the_kernel_and_other_sizes_the_portable_one():
    def chosen(arch, device_arch):
        return Operations.bind(arch, CHECKPOINT, device_arch).index_select.implementation.name

    release = slice_arch("ep64")
    assert chosen(release, "sm90") == "hopper"
    assert chosen(release, "sm100") == "triton"
    assert chosen(replace(release, index_head_dim=64), "sm90") == "triton"


def test_blocks_that_do_not_divide_a_tile_are_an_error():
    make = Maker(replace(SMALL, index_n_heads=32, index_head_dim=128, qk_rope_head_dim=64))
    case = cases.case(make, make.batch([(9, 1)]), publish=True)
    call = (case["queries"], case["batch"], case["pages"], slice(None), case["record"])
    with pytest.raises(ValueError, match="128 entries do not divide 64"):
        hopper.scores(*call, rule=CandidateRule(5, 128), publish=True)


def test_more_ids_than_a_program_can_hold_are_an_error():
    with pytest.raises(ValueError, match="2049 of a row"):
        gluon_best.best(torch.zeros(1, 5000), 2049)


@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(0, 5000),
    columns=st.integers(1, 1 << 22),
    count=st.sampled_from([1, 512, 513, 2048]),
    itemsize=st.sampled_from([2, 4]),
)
def test_parts_are_whole_steps_and_shrink_a_row(rows, columns, count, itemsize):
    part = gluon_best._part(rows, columns, count, itemsize)
    assert part % 16_384 == 0
    assert part <= (262_144 if count <= 512 else 16_384)
    left = -(-columns // part)
    assert left == 1 or left * count < columns
