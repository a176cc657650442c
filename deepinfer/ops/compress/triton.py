"""The compressor of an owner layer with its products in Triton, value and gate in one.

What surrounds the products is the reference's own arithmetic, on few numbers. Knows nothing of
queries.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from deepinfer.arch import Records
from deepinfer.ops.batch import Batch, PageViews, before, store_ring
from deepinfer.ops.compress.reference import CompressorWeights, pool_pair, store_entries
from deepinfer.ops.rotation import rotate, rotation
from deepinfer.ops.triton_product import product, refuses_plain
from deepinfer.ops.triton_rows import norm_quantise


class PackedCompressor(NamedTuple):
    """Weights of an owner layer: `wkv` with `wgate` below it if `pairs`, the others as they are."""

    wkv: Tensor
    pairs: bool
    norm: Tensor
    wk: Tensor
    k_norm: Tensor


def pack(weights: CompressorWeights) -> PackedCompressor:
    """Value and gate projections in one matrix.

    Raises:
        ValueError: the weights are not bf16.
    """
    if weights.wkv.dtype != torch.bfloat16:
        raise ValueError(f"compress: the kernels take bf16 weights, not {weights.wkv.dtype}")
    gated = weights.wgate is not None
    wkv = torch.cat((weights.wkv, weights.wgate)) if weights.wgate is not None else weights.wkv
    return PackedCompressor(wkv.contiguous(), gated, weights.norm, weights.wk, weights.k_norm)


def _latents(
    hidden: Tensor, weights: PackedCompressor, batch: Batch, pairs: Tensor | None, eps: float
) -> Tensor:
    if not weights.pairs:
        raw = product(hidden, weights.wkv, torch.bfloat16)
        return norm_quantise(raw, weights.norm, eps, quantise=False)[0]
    assert pairs is not None, "a ratio-2 owner has a pair ring"
    state = product(hidden, weights.wkv, torch.float32).unflatten(1, (2, -1))
    back = torch.ones_like(batch.positions).unsqueeze(1)
    earlier = before(batch, pairs, state, back).squeeze(1)
    store_ring(pairs, batch, state)
    pooled = pool_pair(earlier, state).to(hidden.dtype)
    return norm_quantise(pooled, weights.norm, eps, quantise=False)[0]


def compress(
    hidden: Tensor,
    weights: PackedCompressor,
    batch: Batch,
    pairs: Tensor | None,
    pages: PageViews,
    freqs: Tensor,
    *,
    eps: float,
    records: Records,
) -> None:
    """As the reference, for bf16 `hidden` and weights that `pack` joined."""
    latent = _latents(hidden.contiguous(), weights, batch, pairs, eps)
    by = rotation(batch.positions - (pages.ratio - 1), freqs)  # first token of the group (D18)
    raw_key = product(latent, weights.wk, torch.bfloat16)
    key = rotate(norm_quantise(raw_key, weights.k_norm, eps, quantise=False)[0], by)
    store_entries(rotate(latent, by), key, batch, pages, records)


def refuses(
    *, arch: str, quantised: bool, hidden: int, head_dim: int, **_facts: object
) -> str | None:
    """None if the kernels serve, else why not; facts as `Op.bind` passes them."""
    if head_dim % 64:
        return f"head_dim {head_dim} is no multiple of 64"
    return refuses_plain(arch=arch, quantised=quantised, hidden=hidden)
