"""How the low-rank output kernel cuts its work; pure numbers. Knows nothing of tensors."""

from __future__ import annotations

from typing import NamedTuple

_PROGRAMS = 200  # wanted; between one and two for each multiprocessor of an H200
_LEAST_STEPS = 2  # steps of 128 columns a segment


class Tile(NamedTuple):
    """Shape of one program: `rows` of the weight, `tokens`, warps, buffers in flight."""

    rows: int
    tokens: int
    warps: int
    stages: int


# Measured on one H200 (docs/kernels.md).
_NARROW = {16: Tile(128, 16, 8, 5), 64: Tile(128, 64, 8, 3)}
_WIDE = Tile(128, 128, 8, 4)


def choose(tokens: int) -> Tile:
    """The narrowest tile that holds all tokens, else the one for many."""
    return next((tile for width, tile in sorted(_NARROW.items()) if tokens <= width), _WIDE)


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
