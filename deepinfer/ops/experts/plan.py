"""Tile sizes of the routed-expert kernels, chosen from counts that the host knows.

A tile's token width changes no bits: every row's products are added in the same order at any width.
Knows nothing of tensors.
"""

from __future__ import annotations

import math
from typing import NamedTuple


class Tile(NamedTuple):
    """Shape of one program: `rows` of the weight, `tokens` columns, warps, buffers in flight.

    `rows` are 128 or 256, 16 or 32 a warp; `tokens` 16, 32, 48 (32 and 16), 64, 96 or 128.
    `registers`: at most so many a thread. `programs`: how many fill the device; where a warp
    copies.
    """

    rows: int
    tokens: int
    warps: int
    stages: int
    registers: int | None = None
    programs: int = 0


class Tiles(NamedTuple):
    """Tiles of both products; they share the token width, because they share the tile table.

    `own`: every expert multiplies all tokens, which one tile holds (triton_few.py), so that no
    weight has to wait for the routing. `least`: a tile with few rows multiplies a half or a quarter
    of its width, but no fewer tokens than this; None: always all. `overlap`: a launch may start
    while the one before ends; with `own` and `copied` it always may. `copied`: the input is copied
    in sorted order and a warp of each program copies it on (triton_many.py).
    """

    gate_up: Tile
    down: Tile
    own: bool = False
    least: int | None = None
    overlap: bool = False
    copied: bool = False


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
# Of few experts, by the number of tokens; buffers as many as a multiprocessor holds.
_OF_FEW = {
    16: _both(Tile(256, 16, 8, 10), own=True),
    32: _both(Tile(256, 32, 8, 9), own=True),
    64: _both(Tile(256, 64, 8, 8), own=True),
}
_FEW = 12
# With a warp that copies: three and two programs a multiprocessor of an H200, which take as long.
_COPIED = (
    _both(Tile(128, 64, 4, 4, 80, 396))._replace(overlap=True, copied=True),
    _both(Tile(128, 128, 4, 4, 128, 264))._replace(overlap=True, copied=True),
)
_MANY = 128  # rows an expert from which that is faster for any number of experts
_BLOCKS = 36  # of 128 rows of gate and up, as many in the release


def _copied(rows: float, experts: int) -> Tiles:
    """Of few experts the tile with which the device is done soonest, the narrower one if both are.

    Of more the wider one: their rows differ, and what counts is the work of a tile.
    """
    turns = [
        -(-_BLOCKS * experts * math.ceil(rows / tile.tokens) // tile.programs)
        for tile, *_ in _COPIED
    ]
    return _COPIED[experts > _FEW or turns[1] < turns[0]]


def choose(tokens: int, k: int, experts: int) -> Tiles:
    """Tiles for `tokens` tokens of `k` choices each among `experts` experts.

    Few experts multiply all tokens each as long as one tile holds them. Elsewhere the width is the
    smallest that holds an expert's mean share, and up to 48 a quarter more, so that most experts
    fill one tile while their weights are read once; where rows are few a tile multiplies a part of
    its width. Launches overlap unless many experts have so few tokens that the programs of the next
    kernel would find free multiprocessors and crowd them. Experts that get more rows have programs
    with a warp that copies.
    """
    if experts <= _FEW and tokens <= max(_OF_FEW):
        return next(tiles for width, tiles in sorted(_OF_FEW.items()) if tokens <= width)
    share, more = tokens * k / experts, 1.25 if experts > k else 1.0
    width = next((w for w in _BY_WIDTH if share * (more if w <= 48 else 1.0) <= w), max(_BY_WIDTH))
    if experts <= _FEW and share > 64 or share >= _MANY:
        return _copied(share, experts)
    if experts <= _FEW:
        return _BY_WIDTH[width]._replace(overlap=True)
    return _BY_WIDTH[width]._replace(least=16, overlap=tokens * k >= experts)


def most_tiles(rows: int, experts: int, width: int) -> int:
    """Upper bound of the tiles that `rows` (token, choice) pairs can need in any routing."""
    return min(rows, experts + rows // width)
