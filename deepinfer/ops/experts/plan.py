"""Tile sizes of the routed-expert kernels, chosen from counts that the host knows.

A tile's token width changes no bits: every row's products are added in the same order at any width.
Knows nothing of tensors.
"""

from __future__ import annotations

from typing import NamedTuple


class Tile(NamedTuple):
    """Shape of one program: `rows` of the weight, `tokens` columns, warps, buffers in flight.

    `rows` are 128 or 256, 16 or 32 a warp; `tokens` 16, 32, 48 (32 and 16), 64, 96 or 128.
    `registers`: at most so many a thread.
    """

    rows: int
    tokens: int
    warps: int
    stages: int
    registers: int | None = None


class Tiles(NamedTuple):
    """Tiles of both products; they share the token width, because they share the tile table.

    `own`: each expert has one tile of its own, which holds as many tokens as there are, so that
    its weights can be fetched before the routing is known. `least`: a tile with few rows multiplies
    a half or a quarter of its width, but no fewer tokens than this; None: always all. `overlap`:
    a launch may start while the one before ends; with `own` it always may.
    """

    gate_up: Tile
    down: Tile
    own: bool = False
    least: int | None = None
    overlap: bool = False


def _both(tile: Tile, own: bool = False) -> Tiles:
    return Tiles(tile, tile, own)


# Measured on one H200 (docs/kernels.md). No tile may spill: with so much shared memory in use the
# rest of the L1 cache holds no stack, and a program takes three times as long.
_BY_WIDTH = {
    16: _both(Tile(128, 16, 4, 4)),
    32: _both(Tile(128, 32, 4, 4)),
    48: _both(Tile(128, 48, 4, 4, 168)),
    64: _both(Tile(128, 64, 4, 4)),
}
# Of few experts, by the number of tokens. Buffers are as many as let all programs of a product fit
# on the device at once and not one more a multiprocessor, or they would crowd some of them.
_OF_FEW = {
    16: _both(Tile(128, 16, 4, 8), own=True),
    32: _both(Tile(128, 32, 4, 6), own=True),
    64: _both(Tile(128, 64, 4, 4), own=True),
}
_FEW = 12


def choose(tokens: int, k: int, experts: int) -> Tiles:
    """Tiles for `tokens` tokens of `k` choices each among `experts` experts.

    Of few experts each has one tile as long as that holds all tokens. Elsewhere the width is the
    smallest that holds an expert's mean share, and up to 48 a quarter more, so that most experts
    fill one tile while their weights are read once; where rows are few a tile multiplies a part of
    its width. Launches overlap unless many experts have so few tokens that the programs of the next
    kernel would find free multiprocessors and crowd them.
    """
    if experts <= _FEW and tokens <= max(_OF_FEW):
        return next(tiles for width, tiles in sorted(_OF_FEW.items()) if tokens <= width)
    share, more = tokens * k / experts, 1.25 if experts > k else 1.0
    width = next((w for w in _BY_WIDTH if share * (more if w <= 48 else 1.0) <= w), max(_BY_WIDTH))
    if experts <= _FEW:
        return _BY_WIDTH[width]._replace(overlap=True)
    return _BY_WIDTH[width]._replace(least=16, overlap=tokens * k >= experts)


def most_tiles(rows: int, experts: int, width: int) -> int:
    """Upper bound of the tiles that `rows` (token, choice) pairs can need in any routing."""
    return min(rows, experts + rows // width)
