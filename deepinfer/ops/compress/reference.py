"""The compressor of an owner layer: latents and index keys into the pages.

Ratio 1: every token is an entry. Ratio 2: two neighbours are pooled, channel by channel, when the
second arrives; the first waits in the pair ring. Knows nothing of queries.
Source: `spec/model.md` 6.3-6.5; `spec/model-decisions.md` D39-D41.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from deepinfer.arch import Records
from deepinfer.ops.batch import Batch, PageViews, before, store_ring
from deepinfer.ops.formats import encode_record
from deepinfer.ops.products import curve, linear, matmul, rms_norm
from deepinfer.ops.rotation import rotate, rotation


class CompressorWeights(NamedTuple):
    """Weights of an owner layer.

    wkv, wgate [head_dim, hidden] (wgate None for ratio 1); norm [head_dim]; wk [index_head_dim,
    head_dim] and k_norm [index_head_dim] of the index keys.
    """

    wkv: Tensor
    wgate: Tensor | None
    norm: Tensor
    wk: Tensor
    k_norm: Tensor


def pool_pair(first: Tensor, second: Tensor) -> Tensor:
    """Weighted sum of two tokens' values with a softmax of their gates per channel, fp32.

    Args:
        first: [tokens, 2, head_dim] fp32, value and gate of the earlier token.
        second: the same of the later one.

    Returns:
        [tokens, head_dim] fp32, not rounded.
    """
    gates = torch.stack((first[:, 1], second[:, 1]))
    share = curve(partial(torch.softmax, dim=0), gates)
    return first[:, 0] * share[0] + second[:, 0] * share[1]


def latents(
    hidden: Tensor, weights: CompressorWeights, batch: Batch, pairs: Tensor | None, eps: float
) -> Tensor:
    """Latent that each token completes, before rotation, [tokens, head_dim] (rows that complete
    none hold a value that must not be used). Writes the pair ring of a ratio-2 owner."""
    if weights.wgate is None:
        return rms_norm(linear(hidden, weights.wkv), weights.norm, eps)
    assert pairs is not None, "a ratio-2 owner has a pair ring"
    state = torch.stack((matmul(hidden, weights.wkv), matmul(hidden, weights.wgate)), dim=1)
    back = torch.ones_like(batch.positions).unsqueeze(1)
    earlier = before(batch, pairs, state, back).squeeze(1)
    store_ring(pairs, batch, state)
    return rms_norm(pool_pair(earlier, state).to(hidden.dtype), weights.norm, eps)


def compress(
    hidden: Tensor,
    weights: CompressorWeights,
    batch: Batch,
    pairs: Tensor | None,
    pages: PageViews,
    freqs: Tensor,
    *,
    eps: float,
    records: Records,
) -> None:
    """Store the entries that this step's tokens complete, but not those that are cached already.

    Args:
        hidden: [tokens, d] bf16 or fp32, the normalised attention input.
        weights: of the owner layer.
        batch: the tokens; the pages of every completed entry must be in its page table.
        pairs: [slots, pair rows, 2, head_dim] fp32, the owner's pair ring; None for ratio 1.
        pages: the owner's page sections.
        freqs: fp32 [rope / 2], YaRN frequencies.
        eps: config key `rms_norm_eps`.
        records: record formats.

    Writes:
        `pairs` (value and gate of every token) and `pages` (latent record and index key of every
        completed entry; tokens that complete none, or one that is cached, write to page 0).
    """
    ratio = pages.ratio
    latent = latents(hidden, weights, batch, pairs, eps)
    by = rotation(batch.positions - (ratio - 1), freqs)  # first token of the group (D18)
    key = rotate(rms_norm(linear(latent, weights.wk), weights.k_norm, eps), by)
    store_entries(rotate(latent, by), key, batch, pages, records)


def store_entries(
    latent: Tensor, key: Tensor, batch: Batch, pages: PageViews, records: Records
) -> None:
    """Write the entries that tokens complete; those that must go nowhere go to page 0.

    Args:
        latent: [tokens, head_dim] rotated.
        key: [tokens, index_head_dim] rotated.
        batch: the tokens.
        pages: the owner's page sections.
        records: record formats.
    """
    entry = batch.positions // pages.ratio
    complete = batch.positions % pages.ratio == pages.ratio - 1
    complete &= batch.positions >= batch.cached
    page = batch.page_table[batch.rows, entry // pages.entries]
    page = torch.where(complete, page, 0)
    row = entry % pages.entries
    pages.latents[page, row] = encode_record(latent, records.latent)
    stored = encode_record(key, records.index_key)
    split = records.index_key.code_bytes
    pages.key_codes[page, row] = stored[:, :split]
    pages.key_scales[page, row] = stored[:, split:]
