"""The balancing of mHC matrices as two Triton kernels, one program a few hundred tokens.

The forward pass stores each step's divisors; the backward pass multiplies them on again, so that no
intermediate matrix is kept. Knows nothing of autograd. Meaning: `sinkhorn.balance`.
"""
# Triton is optional and untyped: a checker may not find it.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false, reportIndexIssue=false
# pyright: reportGeneralTypeIssues=false

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_ROWS = 64


@triton.jit
def _balance(logits, comb, sums, rows, eps, STEPS: tl.constexpr, M: tl.constexpr, R: tl.constexpr):
    row = tl.program_id(0) * R + tl.arange(0, R)
    live = row < rows
    at = row[:, None, None] * (M * M) + tl.arange(0, M)[None, :, None] * M
    at = at + tl.arange(0, M)[None, None, :]
    mask = live[:, None, None] & (at >= 0)
    c = tl.load(logits + at, mask=mask, other=0.0)
    c = tl.exp(c - tl.max(c, 2)[:, :, None])
    c = c / tl.sum(c, 2)[:, :, None] + eps
    place = row[:, None] * (STEPS * M) + tl.arange(0, M)[None, :]
    kept = live[:, None] & (place >= 0)
    total = tl.sum(c, 1) + eps
    tl.store(sums + place, total, mask=kept)
    c = c / total[:, None, :]
    for step in range((STEPS - 1) // 2):
        total = tl.sum(c, 2) + eps
        tl.store(sums + place + (2 * step + 1) * M, total, mask=kept)
        c = c / total[:, :, None]
        total = tl.sum(c, 1) + eps
        tl.store(sums + place + (2 * step + 2) * M, total, mask=kept)
        c = c / total[:, None, :]
    tl.store(comb + at, c, mask=mask)


@triton.jit
def _balance_back(
    grad, comb, sums, out, rows, eps, STEPS: tl.constexpr, M: tl.constexpr, R: tl.constexpr
):
    row = tl.program_id(0) * R + tl.arange(0, R)
    live = row < rows
    at = row[:, None, None] * (M * M) + tl.arange(0, M)[None, :, None] * M
    at = at + tl.arange(0, M)[None, None, :]
    mask = live[:, None, None] & (at >= 0)
    g = tl.load(grad + at, mask=mask, other=0.0)
    c = tl.load(comb + at, mask=mask, other=0.0)
    place = row[:, None] * (STEPS * M) + tl.arange(0, M)[None, :]
    kept = live[:, None] & (place >= 0)
    for back in range((STEPS - 1) // 2):
        step = STEPS - 1 - 2 * back
        total = tl.load(sums + place + step * M, mask=kept, other=1.0)[:, None, :]
        g = (g - tl.sum(g * c, 1)[:, None, :]) / total
        c = c * total
        total = tl.load(sums + place + (step - 1) * M, mask=kept, other=1.0)[:, :, None]
        g = (g - tl.sum(g * c, 2)[:, :, None]) / total
        c = c * total
    total = tl.load(sums + place, mask=kept, other=1.0)[:, None, :]
    g = (g - tl.sum(g * c, 1)[:, None, :]) / total
    p = c * total - eps
    g = p * (g - tl.sum(g * p, 2)[:, :, None])
    tl.store(out + at, g, mask=mask)


def forward(logits: Tensor, iterations: int, eps: float) -> tuple[Tensor, Tensor]:
    """Balanced matrices and the divisors [tokens, 2 * iterations - 1, m] of the steps, fp32."""
    rows, m, _ = logits.shape
    comb, sums = torch.empty_like(logits), logits.new_empty(rows, 2 * iterations - 1, m)
    grid = (triton.cdiv(rows, _ROWS),)
    _balance[grid](logits, comb, sums, rows, eps, 2 * iterations - 1, m, _ROWS, num_warps=2)
    return comb, sums


def backward(grad: Tensor, comb: Tensor, sums: Tensor, eps: float) -> Tensor:
    """Gradient of the logits from that of the matrices."""
    rows, m, _ = grad.shape
    out = torch.empty_like(grad)
    grid = (triton.cdiv(rows, _ROWS),)
    _balance_back[grid](grad, comb, sums, out, rows, eps, sums.shape[1], m, _ROWS, num_warps=2)
    return out
