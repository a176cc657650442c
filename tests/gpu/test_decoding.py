"""The tokens of decoding rows on the device: those of the reference."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from deepinfer.ops.decoding import decoding
from tests.ops.small import same

pytest.importorskip("triton")
from deepinfer.ops.decoding import triton as kernel

pytestmark = pytest.mark.gpu
WIDTH = 300


def table(seed: int, rows: int, drafts: int, budget: int, device: Any) -> Any:
    """State of rows of which some have ended; confidences with ties, unknown and broken ones."""
    draw = torch.Generator().manual_seed(seed)

    def some(low: int, high: int) -> torch.Tensor:
        return torch.randint(low, high, (rows,), generator=draw).to(device)

    length = some(1, 200)
    confidence = torch.randint(-3, 4, (rows, drafts), generator=draw) * 0.75
    confidence[torch.rand(rows, drafts, generator=draw) < 0.1] = float("nan")
    ended = some(0, 6) == 0
    ended[0] = True
    return SimpleNamespace(
        tokens=torch.randint(0, 999, (rows, WIDTH), generator=draw).to(device),
        length=length,
        limit=length + some(0, 2 * drafts + 2),
        lower=some(0, 9),
        cached=some(0, 9),
        drafts=some(0, drafts + 1),
        cap=some(0, drafts + 1),
        ended=ended,
        confidence=confidence.to(device=device, dtype=torch.float32),
        temperature=(torch.arange(drafts, device=device) * 0.5 + 0.7).double(),
        budget=torch.tensor([budget], device=device),
    )


@pytest.mark.parametrize("drafts", [0, 1, 3, 5])
@pytest.mark.parametrize("count", [1, 8, 40, 300])
def test_tokens_are_those_of_the_reference(gpu, drafts, count):
    for seed, share in enumerate((0.0, 0.1, 0.4, 1.0)):
        budget = int(share * count * drafts)
        made = table(seed, count + 5, drafts, budget, gpu.device)
        rows = torch.arange(3, 3 + count, device=gpu.device)
        rows[count - count // 8 :] = 0  # padding
        for places, ngram in ((count * drafts, 4), (budget, 1)):
            torch.full((1 << 22,), 255, dtype=torch.uint8, device=gpu.device)  # poison of outputs
            found = kernel.decoding(made, rows, places=places, ngram=ngram)
            wanted = decoding.reference(made, rows, places=places, ngram=ngram)
            for name, one, two in zip(wanted._fields, found, wanted, strict=True):
                assert same(one, two), name


@pytest.mark.parametrize("drafts", [3, 5])
def test_a_budget_for_all_drafts_gives_all_of_them_whatever_the_padding(gpu, drafts):
    for seed in range(20):
        made = table(seed, 12, drafts, 0, gpu.device)
        made.confidence = torch.randn(12, drafts, device=gpu.device)
        made.temperature = torch.rand(drafts, device=gpu.device).double() + 0.5
        real = torch.arange(1, 8, device=gpu.device)
        made.budget.fill_(len(real) * drafts)
        wanted = kernel.decoding(made, real, places=len(real) * drafts, ngram=1).verified
        made.budget.fill_(int(wanted.sum()))
        padded = torch.cat((real, real.new_zeros(25)))
        found = kernel.decoding(made, padded, places=len(padded) * drafts, ngram=1).verified
        assert torch.equal(found[:7], wanted)
        assert not found[7:].any()
        less = max(int(wanted.sum()) - 2, 0)
        made.budget.fill_(less)
        found = kernel.decoding(made, padded, places=len(padded) * drafts, ngram=1).verified
        assert int(found.sum()) == less


def test_no_rows_give_no_tokens(gpu):
    made = table(0, 4, 3, 5, gpu.device)
    found = kernel.decoding(made, made.length[:0], places=7, ngram=4)
    assert same(found, decoding.reference(made, made.length[:0], places=7, ngram=4))
