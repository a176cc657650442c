"""The two narrow projections of an attention input: low-rank query and raw window key."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from deepinfer.ops.formats import Fp8Weight, Quantised
from deepinfer.ops.norm_quantise.reference import Normed, norm_quantise
from deepinfer.ops.products import linear


class LowRankWeights(NamedTuple):
    """wq_a [q_lora_rank, d] and wkv [head_dim, d], FP8 or plain; q_norm [q_lora_rank]."""

    wq_a: Fp8Weight | Tensor
    wkv: Fp8Weight | Tensor
    q_norm: Tensor


class LowRank(NamedTuple):
    """`query`: the normalised low-rank query [tokens, q_lora_rank], quantised once for all that
    read it; `kv`: the raw window key [tokens, head_dim]."""

    query: Normed
    kv: Tensor


def low_rank(
    x: Tensor | Quantised, weights: LowRankWeights, *, eps: float, quantise: bool
) -> LowRank:
    """Two linear layers of one input; the query is normalised and quantised (D6, D7).

    Args:
        x: [tokens, d] as an FP8 pair, or plain in debug numerics.
        weights: of a layer's attention.
        eps: config key `rms_norm_eps`.
        quantise: also return the query's FP8 pair.
    """
    query = norm_quantise(linear(x, weights.wq_a), weights.q_norm, eps=eps, quantise=quantise)
    return LowRank(query, linear(x, weights.wkv))
