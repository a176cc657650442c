"""Tile sizes of the routed-expert kernels, chosen from counts that the host knows.

A tile's token width changes no bits: every row's products are added in the same order at any width.
Knows nothing of tensors.
"""

from __future__ import annotations

from typing import NamedTuple


class Tile(NamedTuple):
    """Shape of one program: `rows` of the weight, `tokens` columns, warps, buffers in flight."""

    rows: int
    tokens: int
    warps: int
    stages: int


class Tiles(NamedTuple):
    """Tiles of both products; they share the token width, because they share the tile table."""

    gate_up: Tile
    down: Tile


# Measured on one H200 (docs/results/h200.md).
_BY_WIDTH = {
    16: Tiles(Tile(128, 16, 4, 4), Tile(128, 16, 4, 4)),
    64: Tiles(Tile(128, 64, 4, 3), Tile(128, 64, 4, 3)),
    128: Tiles(Tile(128, 128, 4, 2), Tile(128, 128, 4, 2)),
}
# Of few experts there are not enough tiles to put two on each multiprocessor.
_OF_FEW = {64: Tiles(Tile(128, 64, 8, 4), Tile(128, 64, 8, 4))}
_FEW = 12


def choose(tokens: int, k: int, experts: int) -> Tiles:
    """Tiles for `tokens` tokens of `k` choices each among `experts` experts.

    The width is the smallest that holds an expert's mean share and a quarter more, so that most
    experts fill one tile while their weights are read once; where every token takes every expert
    the share is exact.
    """
    share = tokens * k / experts * (1.25 if experts > k else 1.0)
    width = next((w for w in sorted(_BY_WIDTH) if share <= w), max(_BY_WIDTH))
    few = _OF_FEW.get(width) if experts <= _FEW else None
    return few or _BY_WIDTH[width]


def most_tiles(rows: int, experts: int, width: int) -> int:
    """Upper bound of the tiles that `rows` (token, choice) pairs can need in any routing."""
    return min(rows, experts + rows // width)
