"""The end of a step on the device: the reference's results and tables, bit by bit."""

import pytest
import torch

from deepinfer.ops.conclude import conclude
from tests.ops.small import same
from tests.ops.test_conclude import step

pytest.importorskip("triton")
from deepinfer.ops.conclude import triton as kernel

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("cap", [0, 1, 3, 5])
@pytest.mark.parametrize("masked", [False, True])
def test_results_and_tables_are_those_of_the_reference(gpu, cap, masked):
    for seed in range(12):
        given, other = (step(seed, cap, masked=masked, device=gpu.device) for _ in range(2))
        torch.full((1 << 20,), 255, dtype=torch.uint8, device=gpu.device)  # poison of the outputs
        assert same(kernel.conclude(*given, cap=cap), conclude.reference(*other, cap=cap))
        for one, two in zip(given[0], other[0], strict=True):
            assert torch.equal(one[1:], two[1:])  # row 0 takes what goes nowhere
