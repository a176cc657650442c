"""exp and log of float64, made of additions, multiplications and divisions only.

Library versions may differ in the last bit between devices, and between the vectorised body and
the tail of a loop; a cut of top-p would then depend on where a row lies. IEEE arithmetic does not.
Knows nothing of probabilities, except that `mass` turns them into integers.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

LOG2_E = 1 / math.log(2)
EXP2 = tuple(math.log(2) ** k / math.factorial(k) for k in range(14))  # Taylor, |x| <= 1/2
ATANH = tuple(2 / (2 * k + 1) for k in range(12))  # ln((1 + r) / (1 - r)) / r, in powers of r^2
LEAST = -700.0  # exp of less is taken as 0
MASS_BITS = 44
MOST_VOCAB = 1 << 18  # so that sums of masses fit 63 bits


def exp(x: Tensor) -> Tensor:
    """e^x for float64 x <= 0; relative error below 1e-15 down to -10, 1e-13 down to -700."""
    y = x.clamp(min=LEAST) * LOG2_E
    whole = y.round()
    power = ((whole.to(torch.int64) + 1023) << 52).view(torch.float64)  # 2^whole, exactly
    return torch.where(x < LEAST, 0.0, _polynomial(EXP2, y - whole) * power)


def log(x: Tensor) -> Tensor:
    """Natural logarithm of positive float64 x; -inf for 0."""
    mantissa, power = torch.frexp(torch.where(x > 0, x, 1.0))
    small = mantissa < math.sqrt(0.5)
    mantissa = torch.where(small, mantissa * 2, mantissa)
    power = power.to(torch.float64) - small.to(torch.float64)
    r = (mantissa - 1) / (mantissa + 1)
    value = power * math.log(2) + r * _polynomial(ATANH, r * r)
    return torch.where(x > 0, value, -math.inf)


def _polynomial(coefficients: tuple[float, ...], x: Tensor) -> Tensor:
    total = torch.full_like(x, coefficients[-1])
    for coefficient in coefficients[-2::-1]:
        total = total * x + coefficient
    return total


def mass(scaled: Tensor) -> Tensor:
    """Unnormalised probabilities as integers, so that sums do not depend on their order.

    Args:
        scaled: [*, vocab] fp32 <= 0 with maximum 0 in each row; -inf = impossible.

    Returns:
        [*, vocab] int64, e^scaled in multiples of 2^-44, rounded to the nearest.
    """
    assert scaled.shape[-1] <= MOST_VOCAB
    return (exp(scaled.to(torch.float64)) * float(1 << MASS_BITS)).round().to(torch.int64)


def probabilities(scaled: Tensor) -> Tensor:
    """Softmax of `scaled` (as in `mass`): float64, each a quotient of two integers."""
    masses = mass(scaled)
    return masses.to(torch.float64) / masses.sum(-1, keepdim=True).to(torch.float64)


def log_softmax(scaled: Tensor) -> Tensor:
    """fp32 log-probabilities of `scaled` (as in `mass`); -inf where impossible."""
    total = mass(scaled).sum(-1, keepdim=True).to(torch.float64) * 2.0**-MASS_BITS
    return (scaled.to(torch.float64) - log(total)).to(torch.float32)
