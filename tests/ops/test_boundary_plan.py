"""How the boundary's kernels cut streams, and what they refuse."""

from importlib import import_module

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from deepinfer.ops.mhc_boundary.plan import SLICE, group_count, programs
from deepinfer.ops.mhc_boundary.reference import HyperWeights
from deepinfer.ops.mhc_update.reference import Pending


@given(st.integers(1, 40), st.integers(1, 70_000))
def test_groups_share_the_slices_evenly_and_their_programs_run_at_once(blocks, tokens):
    hidden = 256 * blocks
    groups = group_count(hidden)
    assert hidden // SLICE % groups == 0
    assert groups & (groups - 1) == 0  # sums of squares are added in pairs
    assert 1 <= programs(tokens, groups) <= 132 // groups


@pytest.mark.parametrize("wide", ["streams", "output"])
def test_the_kernels_refuse_what_is_not_bf16(wide):
    pytest.importorskip("triton")
    kernels = import_module("deepinfer.ops.mhc_boundary.triton")
    dtypes = dict.fromkeys(("streams", "output"), torch.bfloat16) | {wide: torch.float32}
    streams = torch.zeros(3, 4, 256, dtype=dtypes["streams"])
    output = torch.zeros(3, 256, dtype=dtypes["output"])
    pending = Pending(output, torch.zeros(3, 4), torch.zeros(3, 4, 4))
    weights = kernels.pack(
        HyperWeights(torch.zeros(24, 1024), torch.zeros(24), torch.zeros(3), torch.zeros(256))
    )
    with pytest.raises(ValueError, match="take bf16, not torch.float32; use reference"):
        kernels.mhc_boundary(
            streams, pending, torch.zeros(3, 4), weights,
            eps=1e-6, hc_eps=1e-6, iterations=2, quantise=True,
        )  # fmt: skip
