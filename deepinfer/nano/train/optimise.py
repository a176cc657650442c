"""The optimiser: orthogonal steps for matrices, AdamW for everything else, balanced routers.

The step of a matrix is its momentum with all singular values drawn near one (Newton-Schulz
iteration, Jordan et al., 2024). It does not know what is optimised.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from deepinfer.nano.train.bank import BIAS, Bank, Group, gradients

_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
_STEPS = 5


@dataclass(frozen=True)
class Rates:
    """Sizes of steps before the schedule: `matrix` in units of an orthogonal matrix; `other` of
    AdamW; `balance` of the routers' biases. momentum and decay (per unit of rate) of matrices;
    clip: norm of the gradient of what AdamW steps."""

    matrix: float = 0.02
    other: float = 2e-3
    balance: float = 1e-3
    momentum: float = 0.95
    decay: float = 0.01
    clip: float = 1.0


def orthogonal(matrices: Tensor) -> Tensor:
    """Nearly the orthogonal factor of each of [n, rows, columns]; bf16 inside."""
    tall = matrices.shape[1] > matrices.shape[2]
    x = (matrices.mT if tall else matrices).to(torch.bfloat16)
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    a, b, c = _COEFFICIENTS
    for _ in range(_STEPS):
        square = x @ x.mT
        x = a * x + (b * square + c * square @ square) @ x
    return x.mT if tall else x


class Optimiser:
    """Steps a bank.

    Args:
        bank: what is stepped.
        rates: sizes of steps.
    """

    def __init__(self, bank: Bank, rates: Rates):
        self.rates = rates
        self.matrices = [group for group in bank.groups if group.matrices is not None]
        self.biases = [g for g in bank.groups if g.names[0].endswith(BIAS)]
        self.others = [g for g in bank.groups if g.matrices is None and g not in self.biases]
        self.momenta = [torch.zeros_like(group.values) for group in self.matrices]
        self.adam = torch.optim.AdamW(
            [{"params": [group.values], "lr": rates.other * group.rate} for group in self.others],
            betas=(0.9, 0.95),
            weight_decay=0.0,
            fused=bank.groups[0].values.is_cuda,
        )

    @torch.no_grad()
    def step(
        self, weights: Mapping[str, Tensor], load: Mapping[str, Tensor], factor: float
    ) -> Tensor:
        """One step with the gradients of the working tensors.

        Args:
            weights: working tensors after the backward pass.
            load: share of the tokens of each expert, by block prefix.
            factor: on all rates.

        Returns:
            the gradient norm of what AdamW steps, before clipping.
        """
        for group, momentum in zip(self.matrices, self.momenta, strict=True):
            self._orthogonal_step(group, momentum, gradients(group, weights), factor)
        for group, options in zip(self.others, self.adam.param_groups, strict=True):
            group.values.grad = gradients(group, weights)
            options["lr"] = self.rates.other * group.rate * factor
        values = [group.values for group in self.others]
        norm = torch.nn.utils.clip_grad_norm_(values, self.rates.clip)
        self.adam.step()
        for group in self.others:
            group.values.grad = None
        self._balance(load, factor)
        return norm

    def _orthogonal_step(self, group: Group, momentum: Tensor, grad: Tensor, factor: float) -> None:
        keep = self.rates.momentum
        momentum.lerp_(grad, 1 - keep)
        ahead = grad.lerp(momentum, keep)
        turned = orthogonal(group.split(ahead))
        rows, columns = turned.shape[1:]
        rate = self.rates.matrix * factor
        group.values.mul_(1 - rate * self.rates.decay)
        size = rate * max(1.0, rows / columns) ** 0.5
        group.values.add_(turned.reshape(group.values.shape), alpha=-size)

    def _balance(self, load: Mapping[str, Tensor], factor: float) -> None:
        """Raise the bias of experts that got too few tokens, lower the others' (noaux)."""
        for group in self.biases:
            share = torch.stack([load[name.removesuffix("ffn" + BIAS)] for name in group.names])
            lack = share.mean(1, keepdim=True) - share
            group.values.add_(lack.sign(), alpha=self.rates.balance * min(1.0, factor))

    def state(self) -> dict[str, Any]:
        """For `load`."""
        return {"momenta": self.momenta, "adam": self.adam.state_dict()}

    def load(self, state: Mapping[str, Any]) -> None:
        """Take a saved state."""
        for mine, theirs in zip(self.momenta, state["momenta"], strict=True):
            mine.copy_(theirs)
        self.adam.load_state_dict(state["adam"])
