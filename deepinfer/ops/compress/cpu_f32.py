"""The compressor on the CPU with sums in fp32 and a faster encoder. Knows nothing of queries."""

from __future__ import annotations

import torch
from torch import Tensor

from deepinfer.arch import Records
from deepinfer.ops.batch import Batch, PageViews
from deepinfer.ops.compress.reference import CompressorWeights, pool_pair
from deepinfer.ops.cpu_codes import encode_record
from deepinfer.ops.cpu_rows import keep_plain, product
from deepinfer.ops.products import rms_norm
from deepinfer.ops.rotation import rotate, rotation


def pack(weights: CompressorWeights) -> CompressorWeights:
    """What is pooled is summed to fp32, so its weights are fp32; `wkv` then holds both."""
    wk = keep_plain(weights.wk)
    if weights.wgate is None:
        return weights._replace(wkv=keep_plain(weights.wkv), wk=wk)
    both = torch.cat((weights.wkv, weights.wgate)).to(torch.float32)
    return weights._replace(wkv=both, wk=wk)


def _latents(
    hidden: Tensor,
    weights: CompressorWeights,
    batch: Batch,
    pairs: Tensor | None,
    done: Tensor,
    eps: float,
) -> Tensor:
    """As `latents` of the reference, for the tokens `done` [n] alone, which complete an entry."""
    if weights.wgate is None:
        latent = product(hidden, weights.wkv).index_select(0, done)
        return rms_norm(latent.to(hidden.dtype), weights.norm, eps)
    assert pairs is not None, "a ratio-2 owner has a pair ring"
    state = product(hidden, weights.wkv).unflatten(1, (2, -1))
    start, slot = batch.starts[done], batch.token_slots[done]
    before = batch.positions[done] - 1
    earlier = state[(done - 1).clamp(min=0)]
    first = torch.where(before < start)[0]  # the pair began in an earlier step
    earlier[first] = pairs[slot[first], before[first] % pairs.shape[1]]
    pooled = pool_pair(earlier, state.index_select(0, done)).to(hidden.dtype)
    lasting = torch.where(batch.positions >= batch.ends - pairs.shape[1])[0]
    place = batch.positions[lasting] % pairs.shape[1]
    pairs[batch.token_slots[lasting], place] = state.index_select(0, lasting)
    return rms_norm(pooled, weights.norm, eps)


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
    """As the reference but for the order of sums, for weights that `pack` prepared."""
    ratio = pages.ratio
    done = torch.where(batch.positions % ratio == ratio - 1)[0]
    latent = _latents(hidden, weights, batch, pairs, done, eps)
    positions = batch.positions[done]
    by = rotation(positions - (ratio - 1), freqs)  # first token of the group (D18)
    key = product(latent, weights.wk).to(hidden.dtype)
    key = encode_record(rotate(rms_norm(key, weights.k_norm, eps), by), records.index_key)
    entry = positions // ratio
    page = batch.page_table[batch.rows[done], entry // pages.entries]
    page = torch.where(positions >= batch.cached[done], page, 0)
    row = entry % pages.entries
    pages.latents[page, row] = encode_record(rotate(latent, by), records.latent)
    split = records.index_key.code_bytes
    pages.key_codes[page, row] = key[:, :split]
    pages.key_scales[page, row] = key[:, split:]
