"""The compressor of an owner layer in Triton: products in segments, then all the rest a token.

Knows nothing of queries.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from deepinfer.arch import Records
from deepinfer.ops.batch import Batch, PageViews
from deepinfer.ops.compress.reference import CompressorWeights
from deepinfer.ops.compress.triton_entries import store_entries
from deepinfer.ops.triton_product import parts, refuses_plain


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
        ValueError: the weights are not bf16, or the key width is no power of two from 32 on.
    """
    width = weights.wk.shape[0]
    if width < 32 or width & (width - 1):
        raise ValueError(f"compress: index keys of {width} channels; use reference")
    if weights.wkv.dtype != torch.bfloat16:
        raise ValueError(f"compress: the kernels take bf16 weights, not {weights.wkv.dtype}")
    gated = weights.wgate is not None
    wkv = torch.cat((weights.wkv, weights.wgate)) if weights.wgate is not None else weights.wkv
    wk = weights.wk.contiguous()
    return PackedCompressor(wkv.contiguous(), gated, weights.norm, wk, weights.k_norm)


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
    """As the reference, for bf16 `hidden`, FP4 records and weights that `pack` joined.

    Raises:
        ValueError: the records have other formats.
    """
    formats = (records.latent.format, records.index_key.format)
    if formats != ("fp4_e4m3_16", "fp4_ue8m0_32"):
        raise ValueError(f"compress: the kernels write FP4 records, not {formats}; use reference")
    assert weights.pairs == (pairs is not None), "a ratio-2 owner has a pair ring"
    sums = parts(hidden.contiguous(), weights.wkv)
    store_entries(sums, weights.norm, weights.wk, weights.k_norm, batch, pairs, pages, freqs, eps)


def refuses(
    *, arch: str, quantised: bool, hidden: int, head_dim: int, **_facts: object
) -> str | None:
    """None if the kernels serve, else why not; facts as `Op.bind` passes them."""
    if head_dim % 64 or head_dim & (head_dim - 1):
        return f"head_dim {head_dim} is no power of two from 64 on"
    return refuses_plain(arch=arch, quantised=quantised, hidden=hidden)
