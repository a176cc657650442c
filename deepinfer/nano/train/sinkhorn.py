"""mHC coefficients from projected numbers, differentiable and fast on both kinds of device.

The normalisation of the combination matrix runs in one kernel on a GPU. It does not know streams.
Source: `spec/model.md` 4 (Sinkhorn split); `spec/model-decisions.md` D20.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def balance(logits: Tensor, iterations: int, eps: float) -> Tensor:
    """Nearly doubly stochastic matrices: softmax over the last axis, then columns and rows.

    Args:
        logits: [tokens, m, m] fp32; the first index is the source stream.
        iterations: config key `hc_sinkhorn_iters`, >= 1.
        eps: config key `hc_eps`.
    """
    if logits.is_cuda:
        return _Balance.apply(logits, iterations, eps)  # type: ignore[no-any-return]
    comb = torch.softmax(logits, -1) + eps
    comb = comb / (comb.sum(-2, keepdim=True) + eps)
    for _ in range(iterations - 1):
        comb = comb / (comb.sum(-1, keepdim=True) + eps)
        comb = comb / (comb.sum(-2, keepdim=True) + eps)
    return comb


class _Balance(torch.autograd.Function):
    """`balance` in two kernels; keeps the divisors, from which the steps are undone."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, iterations: int, eps: float) -> Tensor:
        comb, sums = torch.ops.deepinfer_nano.balance(logits.contiguous(), iterations, eps)
        ctx.save_for_backward(comb, sums)
        ctx.eps = eps
        return comb

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        comb, sums = ctx.saved_tensors
        grad = torch.ops.deepinfer_nano.balance_back(grads[0].contiguous(), comb, sums, ctx.eps)
        return grad, None, None


@torch.library.custom_op("deepinfer_nano::balance", mutates_args=(), device_types="cuda")
def _forward(logits: Tensor, iterations: int, eps: float) -> tuple[Tensor, Tensor]:
    from deepinfer.nano.train import sinkhorn_triton

    return sinkhorn_triton.forward(logits, iterations, eps)


@_forward.register_fake
def _(logits: Tensor, iterations: int, eps: float) -> tuple[Tensor, Tensor]:
    rows, m, _ = logits.shape
    return torch.empty_like(logits), logits.new_empty(rows, 2 * iterations - 1, m)


@torch.library.custom_op("deepinfer_nano::balance_back", mutates_args=(), device_types="cuda")
def _backward(grad: Tensor, comb: Tensor, sums: Tensor, eps: float) -> Tensor:
    from deepinfer.nano.train import sinkhorn_triton

    return sinkhorn_triton.backward(grad, comb, sums, eps)


@_backward.register_fake
def _(grad: Tensor, comb: Tensor, sums: Tensor, eps: float) -> Tensor:
    return torch.empty_like(grad)
