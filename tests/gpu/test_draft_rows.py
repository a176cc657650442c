"""Begin and end of a draft pass on the device: the reference's results and tables."""

import pytest
import torch

from deepinfer.ops.draft_start import draft_start
from deepinfer.ops.draft_store import draft_store
from tests.ops.small import same
from tests.ops.test_draft_rows import BLOCK, NOISE, table

pytest.importorskip("triton")
from deepinfer.ops.draft_start import triton as start_kernel
from deepinfer.ops.draft_store import triton as store_kernel

pytestmark = pytest.mark.gpu


def test_blocks_start_as_in_the_reference(gpu):
    for seed in range(5):
        known, rows = table(gpu.device, seed), torch.tensor([3, 7, 1, 11, 0, 0], device=gpu.device)
        for some in (rows, rows[:1], rows[:0]):
            torch.full((1 << 20,), 255, dtype=torch.uint8, device=gpu.device)  # poison of outputs
            found = start_kernel.draft_start(known, some, block=BLOCK, noise=NOISE)
            assert same(found, draft_start.reference(known, some, block=BLOCK, noise=NOISE))


@pytest.mark.parametrize("count", [1, 3, 4])
def test_drafts_go_where_the_reference_puts_them(gpu, count):
    rows = torch.tensor([3, 7, 1, 11], device=gpu.device)
    tokens = torch.randint(0, 999, (count, 4), device=gpu.device).T
    confidence = torch.randn(4, count, device=gpu.device)
    for some in (tokens, tokens.contiguous()):
        one, other = table(gpu.device), table(gpu.device)
        found = store_kernel.draft_store(one, rows, some, confidence)
        assert same(found, draft_store.reference(other, rows, tokens, confidence))
        for name, value in vars(one).items():
            assert torch.equal(value, getattr(other, name)), name
