"""The summation order of the CPU library that made the golden data, for the reference operations.

Its fp32 products were fused multiply-adds in ascending K, one accumulator an output, in blocks of
384 whose sums were added in order; means of squares and sigmoids were the library's fp32 ones. Our
reference sums in float64 instead, so that no order can be seen. Knows nothing of golden files.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor

from deepinfer.ops.sparse_attention import reference as attention

_BLOCK = 384  # K values that share one accumulator


def ordered(x: Tensor, weight: Tensor) -> Tensor:
    """x [*, rows, K] times weight [*, out, K] transposed in the library's order, fp32."""
    x, weight = x.to(torch.float64), weight.to(torch.float64)
    total = None
    for low in range(0, x.shape[-1], _BLOCK):
        part = torch.zeros(())
        for k in range(low, min(low + _BLOCK, x.shape[-1])):
            product = x[..., :, k, None] * weight[..., None, :, k]  # exact for fp32 factors
            part = (part.to(torch.float64) + product).to(torch.float32)
        total = part if total is None else total + part
    assert total is not None
    return total


def _mean_square(x: Tensor) -> Tensor:
    return x.to(torch.float32).square().mean(-1, keepdim=True)


def _attend_block(
    state: attention.Running, q: Tensor, keys: Tensor, visible: Tensor, scale: float
) -> attention.Running:
    keys = keys.masked_fill(~visible.unsqueeze(-1), 0.0)  # unwritten bytes may be no numbers
    scores = ordered(q, keys) * scale
    scores = scores.masked_fill(~visible.unsqueeze(1), -torch.inf)
    high = torch.maximum(state.high, scores.amax(-1, keepdim=True))
    shrink, share = torch.exp(state.high - high), torch.exp(scores - high)
    added = ordered(share.to(q.dtype), keys.mT)
    total = state.total * shrink + share.sum(-1, keepdim=True)
    return attention.Running(high, total, state.out * shrink + added)


@contextmanager
def library_order() -> Iterator[None]:
    """Let the reference operations sum in the library's order inside the block."""
    place = "deepinfer.ops.{}.reference.{}"
    with pytest.MonkeyPatch.context() as patch:
        for op in ("mhc_boundary", "route", "compress", "head"):
            patch.setattr(place.format(op, "matmul"), ordered)
        for op in ("mhc_boundary", "engram_gate"):
            patch.setattr(place.format(op, "mean_square"), _mean_square)
            patch.setattr(place.format(op, "sigmoid"), torch.sigmoid)
        patch.setattr("deepinfer.ops.products.mean_square", _mean_square)
        patch.setattr(place.format("sparse_attention", "attend_block"), _attend_block)
        yield
