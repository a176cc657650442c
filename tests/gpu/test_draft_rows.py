"""Begin and end of a draft pass on the device: the reference's results and tables."""

import pytest
import torch

from deepinfer.ops.draft_start import draft_start
from deepinfer.ops.draft_store import draft_store
from deepinfer.ops.leading import leading_rows
from tests.ops.small import same
from tests.ops.test_draft_rows import BLOCK, NOISE, table

pytest.importorskip("triton")
from deepinfer.ops import triton_leading
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


@pytest.mark.parametrize("requests", [1, 3, 64])
def test_first_rows_of_blocks_are_those_of_the_reference(gpu, requests):
    shapes = [(4, 5120), (4,), (4, 4), (1280,), (40,), (7,), (512,), (3, 11), (32,), (1500,)]
    kinds = [torch.bfloat16, torch.float32, torch.uint8, torch.int64]
    draw = torch.Generator(gpu.device).manual_seed(0)
    tensors = []
    for place, shape in enumerate(shapes):
        size = (5 * requests, *shape)
        drawn = torch.randint(0, 200, size, generator=draw, device=gpu.device)
        tensors.append(drawn.to(kinds[place % len(kinds)]))
    for count in (1, 3, 5):
        for some in (tensors, tensors[:3], tensors[5:6]):
            torch.full((1 << 26,), 255, dtype=torch.uint8, device=gpu.device)  # poison of outputs
            found = triton_leading.leading_rows(some, block=5, count=count)
            wanted = leading_rows.reference(some, block=5, count=count)
            for one, other in zip(found, wanted, strict=True):
                assert torch.equal(one, other)


def test_more_tensors_than_a_launch_takes_are_an_error(gpu):
    with pytest.raises(ValueError, match="11 tensors"):
        triton_leading.leading_rows([torch.zeros(5, 4, device=gpu.device)] * 11, block=5, count=2)
