"""Routed experts on the CPU: weights decoded once, sums in fp32 over whole row tiles.

The rows of an expert fill tiles of their own; everything between its two products runs over all
(token, expert) pairs at a time. Knows nothing of how experts are chosen.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from deepinfer.ops.cpu_codes import decoded
from deepinfer.ops.cpu_rows import TILE, keep_fp4, product
from deepinfer.ops.experts.reference import ExpertWeights, swiglu_clamp
from deepinfer.ops.formats import Quantised

_PAIRS = 1 << 13  # most pairs computed at a time: a bound on memory


def pack(weights: ExpertWeights) -> ExpertWeights:
    """Both stacks decoded."""
    return ExpertWeights(*(keep_fp4(weight) for weight in weights))


def experts(
    x: Tensor | Quantised,
    topk_idx: Tensor,
    topk_weights: Tensor,
    weights: ExpertWeights,
    *,
    limit: float,
) -> Tensor:
    """As the reference but for the order of sums, for weights that `pack` decoded."""
    plain = decoded(x)
    step = max(1, _PAIRS // topk_idx.shape[1])
    parts = [
        _some(plain[rows], topk_idx[rows], topk_weights[rows], weights, limit)
        for rows in (slice(low, low + step) for low in range(0, max(1, len(plain)), step))
    ]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


class _Tiles(NamedTuple):
    """Where pairs lie when every expert's rows fill whole tiles.

    pair [n] int64 the pairs by ascending expert, those without one left out; slot [n] the row of
    each in the tiles; source [rows] which of the n a row holds (the first one where it is padding);
    used (expert, its rows) of each expert that has any.
    """

    pair: Tensor
    slot: Tensor
    source: Tensor
    used: list[tuple[int, slice]]


def _tiles(ids: Tensor, experts: int) -> _Tiles:
    """Lay out expert ids [pairs], -1 = none."""
    counts = torch.bincount(ids + 1, minlength=experts + 1).tolist()
    none, counts = counts[0], counts[1:]
    pair = ids.argsort(stable=True)[none:]
    used: list[tuple[int, slice]] = []
    before, rows, shifts = 0, 0, list[int]()
    for expert, count in enumerate(counts):
        shifts.append(rows - before)
        if count:
            used.append((expert, slice(rows, rows + count + -count % TILE)))
            before, rows = before + count, used[-1][1].stop
    slot = torch.arange(len(pair)) + torch.tensor(shifts)[ids[pair]]
    source = slot.new_zeros(rows)
    source[slot] = torch.arange(len(pair))
    return _Tiles(pair, slot, source, used)


def _some(
    x: Tensor, topk_idx: Tensor, topk_weights: Tensor, weights: ExpertWeights, limit: float
) -> Tensor:
    w13, w2 = weights
    assert isinstance(w13, Tensor), "pack decodes the weights"
    assert isinstance(w2, Tensor), "pack decodes the weights"
    count, choices = topk_idx.shape
    ids, rank = topk_idx.sort(dim=1)  # the outputs of a token are added by ascending expert
    tiles = _tiles(ids.flatten(), len(w13))
    placed = x.new_zeros(count * choices, x.shape[1], dtype=torch.bfloat16)
    if tiles.used:
        rows = (tiles.pair // choices).index_select(0, tiles.source)
        gate_up = _products(x.to(w13.dtype).index_select(0, rows), w13, tiles)
        share = topk_weights.gather(1, rank).flatten()[tiles.pair].unsqueeze(1)
        inner = decoded((swiglu_clamp(gate_up, limit) * share).to(torch.bfloat16))
        out = _products(inner.to(w2.dtype).index_select(0, tiles.source), w2, tiles)
        placed.index_copy_(0, tiles.pair, out)
    placed = placed.unflatten(0, (count, choices))
    total = torch.zeros(x.shape, dtype=torch.float32)
    for choice in range(choices):
        total += placed[:, choice]
    return total


def _products(x: Tensor, stack: Tensor, tiles: _Tiles) -> Tensor:
    """Each expert's rows times its matrix: bf16, one row a pair."""
    out = torch.cat([product(x[rows], stack[expert]) for expert, rows in tiles.used])
    return out.index_select(0, tiles.slot).to(torch.bfloat16)
