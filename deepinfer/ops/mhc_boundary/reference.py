"""Everything between two sub-layers: update, coefficients, collapse, norm, quantisation.

Single-pass mHC: the coefficients computed here serve the sub-layer that follows, except `pre`,
which collapses the streams for the one after it. Knows nothing of attention or experts.
Source: `spec/model.md` 4 (Sinkhorn split), 5; `spec/model-decisions.md` D19-D22.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from deepinfer.ops.formats import Quantised, quantise_fp8
from deepinfer.ops.mhc_collapse.reference import mhc_collapse
from deepinfer.ops.mhc_update.reference import Pending, mhc_update
from deepinfer.ops.products import curve, matmul, mean_square, sigmoid


class HyperWeights(NamedTuple):
    """Weights of one boundary, fp32 except the norm.

    fn [(2 + m) m, m * hidden]; base [(2 + m) m]; scale [3]; norm [hidden].
    """

    fn: Tensor
    base: Tensor
    scale: Tensor
    norm: Tensor


class Coefficients(NamedTuple):
    """pre, post [tokens, m] and comb [tokens, m, m] fp32; comb[j, k] takes stream j to stream k."""

    pre: Tensor
    post: Tensor
    comb: Tensor


class Boundary(NamedTuple):
    """What a sub-layer starts from.

    streams [tokens, m, hidden] after the update; `pre` for the next boundary; `post`, `comb` for
    this sub-layer's output; hidden [tokens, hidden] its normalised input, and `quantised` the FP8
    pair of it (None without quantisers).
    """

    streams: Tensor
    pre: Tensor
    post: Tensor
    comb: Tensor
    hidden: Tensor
    quantised: Quantised | None

    @property
    def input(self) -> Tensor | Quantised:
        """The sub-layer's input in the form that its quantised products take."""
        return self.hidden if self.quantised is None else self.quantised

    def rows(self, index: Tensor) -> Boundary:
        """The boundary of some tokens."""
        pair = self.quantised
        if pair is not None:
            pair = Quantised(pair.codes[index], pair.scale[index])
        return Boundary(
            self.streams[index],
            self.pre[index],
            self.post[index],
            self.comb[index],
            self.hidden[index],
            pair,
        )


def split_coefficients(
    u: Tensor, weights: HyperWeights, iterations: int, eps: float
) -> Coefficients:
    """Turn the projected numbers into pre, post and a nearly doubly stochastic comb (D20).

    Args:
        u: [tokens, (2 + m) m] fp32.
        weights: `base` and `scale` are used.
        iterations: config key `hc_sinkhorn_iters`, >= 1.
        eps: config key `hc_eps`.
    """
    total = u.shape[-1]
    m = next(m for m in range(1, total) if (2 + m) * m == total)
    scale, base = weights.scale, weights.base
    pre = sigmoid(u[:, :m] * scale[0] + base[:m]) + eps
    post = 2 * sigmoid(u[:, m : 2 * m] * scale[1] + base[m : 2 * m])
    comb = (u[:, 2 * m :] * scale[2] + base[2 * m :]).unflatten(-1, (m, m))
    share = curve(torch.exp, comb - comb.amax(-1, keepdim=True))
    comb = share / _total(share, -1) + eps
    comb = comb / (_total(comb, -2) + eps)
    for _ in range(iterations - 1):
        comb = comb / (_total(comb, -1) + eps)
        comb = comb / (_total(comb, -2) + eps)
    return Coefficients(pre, post, comb)


def _total(x: Tensor, axis: int) -> Tensor:
    """Sum over an axis, kept with size 1; written out, so that its fp32 order never changes."""
    first, *rest = x.split(1, axis)
    return sum(rest, start=first)


def coefficients(
    streams: Tensor, weights: HyperWeights, eps: float, hc_eps: float, iterations: int
) -> Coefficients:
    """Coefficients of a sub-layer; the streams' statistic multiplies after the projection."""
    flat = streams.flatten(1)
    u = matmul(flat, weights.fn) * torch.rsqrt(mean_square(flat) + eps)
    return split_coefficients(u, weights, iterations, hc_eps)


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
    """Finish the sub-layer before and prepare the next one.

    Args:
        streams: [tokens, m, hidden] bf16 or fp32, without the pending output.
        pending: output of the sub-layer before, or None if the streams hold it already.
        pre: [tokens, m] fp32, computed by the boundary before; it collapses the new streams.
        weights: of the next sub-layer.
        eps: config key `rms_norm_eps`.
        hc_eps: config key `hc_eps`.
        iterations: config key `hc_sinkhorn_iters`.
        quantise: also return the FP8 pair of the normalised input.
    """
    if pending is not None:
        streams = mhc_update(streams, pending)
    split = coefficients(streams, weights, eps, hc_eps, iterations)
    hidden = mhc_collapse(streams, pre, weights.norm, eps).normed
    pair = quantise_fp8(hidden) if quantise else None
    return Boundary(streams, split.pre, split.post, split.comb, hidden, pair)
