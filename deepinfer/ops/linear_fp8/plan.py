"""How the FP8 linear kernel cuts its work: segments of K by weight shape, tiles by token count.

The segments fix the order of every sum, so they depend on the weight alone; tiles change no bits.
Knows nothing of tensors.
"""

from __future__ import annotations

from typing import NamedTuple

SPLIT_TOKENS = 512  # up to here each of several segments of K is a program of its own
_PROGRAMS = 300  # somewhat more than two for each multiprocessor of an H200
_LEAST_STEPS = 4  # steps of 128 columns a segment


class Tile(NamedTuple):
    """Shape of one program.

    `rows` of the weight, `tokens`, warps, buffers in flight, and a bound on the registers of a
    thread, so that one more program fits on a multiprocessor (None: the compiler's choice).
    `input_left`: the tokens, 64 of them or twice 64, are the left operand of the product. A thread
    then shares a scale among eight sums instead of two. With 128 tokens a program adds all
    segments, with fewer it makes one.
    """

    rows: int
    tokens: int
    warps: int
    stages: int
    registers: int | None = None
    input_left: bool = False


# Measured on one H200 (docs/kernels.md).
_NARROW = {16: Tile(64, 16, 4, 5), 32: Tile(64, 32, 4, 5)}
_NARROW_SPLIT = {16: Tile(64, 16, 4, 6), 32: Tile(64, 32, 4, 6)}
_WHOLE, _SPLIT = Tile(128, 64, 4, 4, None, True), Tile(64, 64, 4, 4, None, True)
_WIDE = Tile(128, 128, 4, 4, 168, True)  # more buffers leave no room for sums of segments


def choose(tokens: int, count: int) -> Tile:
    """The narrowest tile that holds all tokens, else one for many.

    Args:
        tokens: of the input.
        count: segments of K; sums of several are stored in fp32, which small tiles overlap better.
    """
    if tokens > (64 if count == 1 else SPLIT_TOKENS):
        return _WIDE
    narrow = _NARROW if count == 1 else _NARROW_SPLIT
    tiles = (tile for width, tile in narrow.items() if tokens <= width)
    return next(tiles, _WHOLE if count == 1 else _SPLIT)


def segments(out: int, columns: int) -> int:
    """Segments that K is cut into: enough programs for the device, none shorter than four steps.

    Args:
        out: rows of the weight, a multiple of 128.
        columns: K, a multiple of 128.
    """
    steps, blocks = columns // 128, out // 64
    counts = [n for n in range(1, steps // _LEAST_STEPS + 1) if steps % n == 0]
    enough = [n for n in counts if n * blocks >= _PROGRAMS]
    return min(enough) if enough else max(counts, default=1)
