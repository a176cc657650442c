"""How the low-rank output kernel cuts its work; pure numbers. Knows nothing of tensors."""

from __future__ import annotations

from typing import NamedTuple

_PROGRAMS = 200  # wanted; between one and two for each multiprocessor of an H200
_LEAST_STEPS = 2  # steps of 128 columns a segment


class Tile(NamedTuple):
    """Shape of one program: `rows` of the weight, `tokens`, warps, buffers in flight.

    `more`: tokens beside those, whose sums are a tile of their own. `copying`: `warps` multiply
    half of the rows, as many the other half, and one more copies.
    """

    rows: int
    tokens: int
    warps: int
    stages: int
    more: int = 0
    copying: bool = False


# Measured on one H200 (docs/kernels.md).
_NARROW = {16: Tile(128, 16, 8, 5), 64: Tile(128, 64, 8, 3)}
# For many tokens, with microseconds that a tile takes.
_MANY = {
    Tile(128, 128, 8, 4): 40,
    Tile(128, 128, 8, 4, more=32): 46,
    Tile(256, 128, 4, 3, copying=True): 55,
}
_DEVICE = 132  # multiprocessors of an H200; a program of these fills one


def choose(tokens: int, out: int, rank: int) -> Tile:
    """The narrowest tile that holds all tokens, else the one with which many end soonest.

    Args:
        tokens: of the input.
        out: rows of the weight.
        rank: those of a group, which no tile may cross; a multiple of 128.
    """
    for width, tile in sorted(_NARROW.items()):
        if tokens <= width:
            return tile

    def cost(tile: Tile) -> int:
        tiles = -(-tokens // (tile.tokens + tile.more)) * (out // tile.rows)
        return -(-tiles // _DEVICE) * _MANY[tile]

    return min((tile for tile in _MANY if rank % tile.rows == 0), key=cost)


def segments(out: int, columns: int) -> int:
    """Segments that K is cut into; they fix the order of every sum.

    Args:
        out: rows of the weight, a multiple of 128.
        columns: K, a multiple of 128.
    """
    steps, blocks = columns // 128, out // 128
    counts = [n for n in range(1, steps // _LEAST_STEPS + 1) if steps % n == 0]
    enough = [n for n in counts if n * blocks >= _PROGRAMS]
    return min(enough) if enough else max(counts, default=1)
