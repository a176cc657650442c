"""The step between two sub-layers on the CPU: streams widened once, Sinkhorn in NumPy.

Sinkhorn is two hundred operations on sixteen numbers a token; a NumPy call costs half a torch
call. Bits equal the reference's. Knows nothing of attention or experts.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from deepinfer.ops.cpu_codes import quantise as quantise_fp8
from deepinfer.ops.cpu_tiles import product
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
    """Sinkhorn of comb [m, m, tokens] in place, from the row shares on.

    So few numbers are added in ascending order.
    """
    total = np.empty_like(comb[0])
    over_rows, over_columns = total[:, None], total[None]
    np.add.reduce(comb, axis=1, out=total)
    np.divide(comb, over_rows, out=comb)
    np.add(comb, eps, out=comb)
    for iteration in range(iterations):
        if iteration:
            np.add.reduce(comb, axis=1, out=total)
            np.add(total, eps, out=total)
            np.divide(comb, over_rows, out=comb)
        np.add.reduce(comb, axis=0, out=total)
        np.add(total, eps, out=total)
        np.divide(comb, over_columns, out=comb)


def split(
    u: Tensor, mean: Tensor, weights: HyperWeights, eps: float, hc_eps: float, iterations: int
) -> Coefficients:
    """Coefficients of projected streams.

    Args:
        u: [tokens, (2 + m) m] fp32, products of the streams with `fn`.
        mean: [tokens, 1] fp32, mean square of the streams.
        weights: prepared by `pack`.
        eps: config key `rms_norm_eps`.
        hc_eps: config key `hc_eps`.
        iterations: config key `hc_sinkhorn_iters`.
    """
    m = next(m for m in range(1, u.shape[1]) if (2 + m) * m == u.shape[1])
    scaled = (u * torch.rsqrt(mean + eps)).numpy()
    scaled *= weights.scale.numpy()
    scaled += weights.base.numpy()
    gates, comb = scaled[:, : 2 * m], scaled[:, 2 * m :].reshape(-1, m, m)
    np.negative(gates, out=gates)
    comb -= comb.max(-1, keepdims=True)
    shares = curve(torch.exp, torch.from_numpy(scaled)).numpy()
    gates = 1 / (1 + shares[:, : 2 * m])
    comb = np.ascontiguousarray(shares[:, 2 * m :].T).reshape(m, m, -1)
    _balance(comb, iterations, hc_eps)
    comb = torch.from_numpy(comb).permute(2, 0, 1).contiguous()
    return Coefficients(
        torch.from_numpy(gates[:, :m] + np.float32(hc_eps)),
        torch.from_numpy(2 * gates[:, m:]),
        comb,
    )


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
    wide = streams.flatten(1).to(WIDE)
    mean = wide.square().mean(-1, keepdim=True).to(torch.float32)
    found = split(product(wide, weights.fn), mean, weights, eps, hc_eps, iterations)
    hidden = mhc_collapse(streams, pre, weights.norm, eps).normed
    pair = quantise_fp8(hidden) if quantise else None
    return Boundary(streams, found.pre, found.post, found.comb, hidden, pair)
