"""The step between two sub-layers on the CPU: streams widened once, Sinkhorn in NumPy.

Sinkhorn is two hundred operations on sixteen numbers a token; a NumPy call costs half a torch
call. Bits equal the reference's. Knows nothing of attention or experts.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from deepinfer.ops.cpu_tiles import product
from deepinfer.ops.cpu_tiles import quantise as quantise_fp8
from deepinfer.ops.mhc_boundary.reference import Boundary, Coefficients, HyperWeights
from deepinfer.ops.mhc_collapse.reference import mhc_collapse
from deepinfer.ops.mhc_update.reference import Pending, mhc_update
from deepinfer.ops.products import WIDE, curve


def pack(weights: HyperWeights) -> HyperWeights:
    """One scale a coefficient, so that all coefficients are scaled at once."""
    m = next(m for m in range(1, len(weights.base)) if (2 + m) * m == len(weights.base))
    each = torch.tensor([m, m, m * m])
    return weights._replace(scale=weights.scale.repeat_interleave(each))


def _balance(comb: NDArray[np.float32], iterations: int, eps: float) -> None:
    """Sinkhorn of comb [m, m, tokens] in place, from the row shares on; sums written out."""
    m = len(comb)
    total = np.empty_like(comb[0])
    over_rows, over_columns = total[:, None], total[None]
    columns = [comb[:, k] for k in range(m)]

    def add(parts: list[NDArray[np.float32]]) -> None:
        np.add(parts[0], parts[1], out=total)
        for part in parts[2:]:
            np.add(total, part, out=total)

    add(columns)
    np.divide(comb, over_rows, out=comb)
    np.add(comb, eps, out=comb)
    rows = list(comb)
    for iteration in range(iterations):
        if iteration:
            add(columns)
            np.add(total, eps, out=total)
            np.divide(comb, over_rows, out=comb)
        add(rows)
        np.add(total, eps, out=total)
        np.divide(comb, over_columns, out=comb)


def _coefficients(
    streams: Tensor, weights: HyperWeights, eps: float, hc_eps: float, iterations: int
) -> Coefficients:
    m = streams.shape[1]
    wide = streams.flatten(1).to(WIDE)
    mean = wide.square().mean(-1, keepdim=True).to(torch.float32)
    u = product(wide, weights.fn) * torch.rsqrt(mean + eps)
    u = u * weights.scale + weights.base
    gates, comb = u[:, : 2 * m], u[:, 2 * m :].unflatten(-1, (m, m))
    comb -= comb.amax(-1, keepdim=True)
    gates.neg_()
    u = curve(torch.exp, u)
    gates = 1 / (1 + u[:, : 2 * m])
    comb = u[:, 2 * m :].T.contiguous().view(m, m, -1)
    _balance(comb.numpy(), iterations, hc_eps)
    return Coefficients(gates[:, :m] + hc_eps, 2 * gates[:, m:], comb.permute(2, 0, 1).contiguous())


def mhc_boundary(
    streams: Tensor,
    pending: Pending | None,
    pre: Tensor,
    weights: HyperWeights,
    *,
    eps: float,
    hc_eps: float,
    iterations: int,
    quantise: bool,
) -> Boundary:
    """As the reference, for weights that `pack` prepared."""
    if pending is not None:
        streams = mhc_update(streams, pending)
    split = _coefficients(streams, weights, eps, hc_eps, iterations)
    hidden = mhc_collapse(streams, pre, weights.norm, eps).normed
    pair = quantise_fp8(hidden) if quantise else None
    return Boundary(streams, split.pre, split.post, split.comb, hidden, pair)
