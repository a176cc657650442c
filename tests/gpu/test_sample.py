"""The sampling kernels against the reference: the same bits, on rows that cut in every way."""

import math
from typing import Any

import pytest
import torch

from deepinfer.ops.sample import SamplerTable, sample
from deepinfer.ops.sample.cases import SAMPLINGS, admitted
from deepinfer.step import RowSampling
from tests.ops.small import same

pytest.importorskip("triton")
from deepinfer.ops.sample import triton as kernel

pytestmark = pytest.mark.gpu
VOCAB = 129_280
CUTS = (
    RowSampling(),
    RowSampling(temperature=0.0),
    RowSampling(temperature=0.6, top_p=0.95),
    RowSampling(top_k=20),
    RowSampling(top_k=5, top_p=0.9, min_p=0.01),
    RowSampling(top_k=3000, top_p=0.5),
    RowSampling(top_k=VOCAB - 1),
    RowSampling(min_p=0.2),
    RowSampling(top_p=1e-9),
    RowSampling(top_p=1 - 1e-16),
    RowSampling(temperature=1e-3, top_p=0.5, top_k=70_000),
    RowSampling(temperature=50.0, top_p=0.5),
    RowSampling(top_k=3, top_p=0.7),
    RowSampling(temperature=0.2, top_p=0.999999),
)


def given(gpu: Any, samplings: tuple[RowSampling, ...], logits: torch.Tensor) -> dict[str, Any]:
    count, length = len(logits), 40
    table = SamplerTable(count + 1, gpu.device)
    for row in range(1, count + 1):
        table.admit(admitted(row, 3, samplings[(row - 1) % len(samplings)]))
    return {
        "logits": logits,
        "state": table.state,
        "rows": torch.arange(1, count + 1, device=gpu.device),
        "positions": torch.randint(3, length, (count,), device=gpu.device),
        "tokens": torch.randint(0, 16, (count + 1, length), device=gpu.device),
    }


@pytest.mark.parametrize("size", [3.0, 30.0, 0.01, 0.0])
def test_tokens_are_those_of_the_reference_however_steep_the_law(gpu, size):
    logits = torch.randn(3 * len(CUTS), VOCAB, device=gpu.device) * size
    case = given(gpu, CUTS, logits)
    assert same(kernel.sample(**case), sample.reference(**case))


def test_ties_and_masks_cut_as_in_the_reference(gpu):
    logits = torch.randint(0, 9, (2 * len(CUTS), VOCAB), device=gpu.device).float()
    case = given(gpu, CUTS, logits)
    assert same(kernel.sample(**case), sample.reference(**case))
    words = (len(logits), -(-VOCAB // 32))
    masks = torch.randint(-(1 << 31), 1 << 31, words, device=gpu.device).to(torch.int32)
    masks[3] = 0
    assert same(kernel.sample(**case, masks=masks), sample.reference(**case, masks=masks))


def test_rules_and_log_probabilities_are_those_of_the_reference(gpu):
    raw = tuple(s._replace(processed_logprobs=False) for s in SAMPLINGS)
    for samplings in (SAMPLINGS, raw):
        case = given(gpu, samplings, torch.randn(len(samplings), VOCAB, device=gpu.device) * 3)
        case["logits"][4, 77] = math.nan
        case["logits"][5, 78] = -math.inf
        assert same(kernel.sample(**case), sample.reference(**case))


def test_the_device_draws_the_tokens_that_the_cpu_draws(gpu):
    logits = torch.randn(len(CUTS), 5000, device=gpu.device) * 3
    case = given(gpu, CUTS[:6], logits)
    table = SamplerTable(len(logits) + 1)
    for row in range(1, len(logits) + 1):
        table.admit(admitted(row, 3, CUTS[(row - 1) % 6]))
    moved = {k: v.cpu() for k, v in case.items() if isinstance(v, torch.Tensor)}
    wanted = sample.reference(**moved, state=table.state)
    assert torch.equal(kernel.sample(**case).tokens.cpu(), wanted.tokens)


def test_a_row_alone_draws_as_in_any_batch(gpu):
    logits = torch.randn(len(CUTS), VOCAB, device=gpu.device) * 3
    case = given(gpu, CUTS, logits)
    whole = kernel.sample(**case)
    for row in (0, 4, 11):
        some = slice(row, row + 1)
        alone = case | {n: case[n][some] for n in ("logits", "rows", "positions")}
        assert torch.equal(kernel.sample(**alone).tokens, whole.tokens[some])
