"""The head's kernel: near the reference, and the same bits with any tile and in any company."""

from typing import Any

import pytest
import torch
from torch import Tensor

from deepinfer.ops.head import head

pytest.importorskip("triton")
from deepinfer.ops.head import hopper
from deepinfer.ops.head import triton as kernel

pytestmark = pytest.mark.gpu
HIDDEN = 1280


def inputs(gpu: Any, tokens: int, vocab: int) -> tuple[Tensor, Tensor]:
    hidden = torch.randn((tokens, HIDDEN), device=gpu.device)
    weight = torch.randn((vocab, HIDDEN), device=gpu.device) * HIDDEN**-0.5
    return hidden.to(torch.bfloat16), weight.to(torch.bfloat16)


@pytest.mark.parametrize("vocab", [1000, 129280])
@pytest.mark.parametrize("tokens", [1, 64, 65, 192, 256, 320])
def test_logits_agree_with_the_reference(gpu, tokens, vocab):
    hidden, weight = inputs(gpu, tokens, vocab)
    torch.full((2**28,), 255, dtype=torch.uint8, device=gpu.device)  # poison of the outputs
    found = kernel.head(hidden, weight)
    wanted = hidden.float() @ weight.float().T if vocab > 1000 else head.reference(hidden, weight)
    torch.testing.assert_close(found, wanted, rtol=1e-3, atol=2e-3)


def test_a_row_has_the_same_bits_in_any_company_and_with_any_tile(gpu):
    hidden, weight = inputs(gpu, 520, 4096)
    whole = kernel.head(hidden, weight)
    for first, last in ((0, 1), (519, 520), (3, 67), (40, 140), (1, 193), (0, 256), (100, 420)):
        part = kernel.head(hidden[first:last], weight)
        torch.testing.assert_close(part, whole[first:last], rtol=0, atol=0)
    widths = {kernel.choose(tokens).tokens for tokens in range(1, 521)}
    assert widths == {64, 128, 256}
    for width in widths:
        found = kernel.launch(hidden[:300].contiguous(), weight, kernel.choose(width))
        torch.testing.assert_close(found, whole[:300], rtol=0, atol=0)


@pytest.mark.parametrize("vocab", [1000, 129_280])
def test_tiles_of_192_tokens_have_the_bits_of_the_others(gpu, vocab):
    hidden, weight = inputs(gpu, 400, vocab)
    hidden *= torch.rand((400, 1), device=gpu.device).mul(8).exp2().to(torch.bfloat16)
    whole = kernel.head(hidden, weight)
    for first, last in ((0, 1), (399, 400), (5, 135), (0, 192), (7, 200), (0, 400)):
        torch.full((2**28,), 255, dtype=torch.uint8, device=gpu.device)  # poison of the outputs
        found = hopper.wide(hidden[first:last].contiguous(), weight)
        torch.testing.assert_close(found, whole[first:last], rtol=0, atol=0)
        chosen = hopper.head(hidden[first:last], weight)
        torch.testing.assert_close(chosen, whole[first:last], rtol=0, atol=0)
