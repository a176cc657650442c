"""How the FP8 linear kernel cuts its work: segments of K by weight shape, tiles by token count.

The segments fix the order of every sum, so they depend on the weight alone; tiles change no bits.
Knows nothing of tensors.
"""

from __future__ import annotations

from typing import NamedTuple

SPLIT_TOKENS = 512  # up to here each of several segments of K may be a program of its own
_DEVICE = 132  # multiprocessors of an H200
_PROGRAMS = 230  # wanted, to keep the memory busy; three for each multiprocessor run at once
_LEAST_STEPS = 4  # steps of 128 columns a segment
_LONG = 16  # steps from which on segments need not be equal


class Tile(NamedTuple):
    """Shape of one program.

    `rows` of the weight, `tokens`, warps, buffers in flight, and a bound on the registers of a
    thread, so that one more program fits on a multiprocessor (None: the compiler's choice).
    `input_left`: the tokens, 64 of them or twice 64, are the left operand of the product. A thread
    then shares a scale among eight sums instead of two. With 128 tokens a program adds all
    segments, with fewer it makes one, but for 256 rows with `copying`: then it adds them, too.
    `copying`: `warps` multiply, and one more copies (with 128 tokens always).
    """

    rows: int
    tokens: int
    warps: int
    stages: int
    registers: int | None = None
    input_left: bool = False
    copying: bool = False


# Measured on one H200 (docs/kernels.md).
_NARROW = {16: Tile(64, 16, 4, 5)}
_NARROW_SPLIT = {16: Tile(64, 16, 4, 6), 32: Tile(64, 32, 4, 6)}
_WHOLE, _SPLIT = Tile(128, 64, 4, 4, None, True), Tile(64, 64, 4, 4, None, True)
_COPYING = Tile(64, 64, 4, 3, 80, True, True)  # three programs fit; with more buffers two
_MOST_MISSING = 16  # tokens of the last tile; with more the copies of the other end later
# Each of these two fills a multiprocessor.
_WIDE = Tile(128, 128, 4, 4, 168, True)  # more buffers leave no room for sums of segments
_ACROSS = Tile(256, 64, 4, 4, 168, True, True)


def choose(tokens: int, out: int, columns: int) -> Tile:
    """The narrowest tile that holds all tokens, else the one for many that should end sooner.

    Args:
        tokens: of the input.
        out: rows of the weight.
        columns: K.
    """
    count = segments(out, columns)
    narrow = _NARROW if count == 1 else _NARROW_SPLIT
    for width, tile in narrow.items():
        if tokens <= width:
            return tile
    if count == 1:
        if tokens <= _WHOLE.tokens:
            return _WHOLE
        if out % _ACROSS.rows:
            return _WIDE
        return min(_WIDE, _ACROSS, key=lambda tile: _turns(tokens, out, tile))
    if tokens > SPLIT_TOKENS:
        return _WIDE
    if _apart_us(tokens, out, columns, count) > _wide_us(tokens, out, columns):
        return _WIDE
    return _COPYING if -tokens % _COPYING.tokens <= _MOST_MISSING else _SPLIT


def _apart_us(tokens: int, out: int, columns: int, count: int) -> float:
    """Microseconds of segments that are programs of their own, and of adding them (a fit)."""
    tiles = -(-tokens // _SPLIT.tokens) * (out // _SPLIT.rows) * (columns // 128)
    return 4.5 + 0.0022 * tiles + count * tokens * out * 1e-6


def _wide_us(tokens: int, out: int, columns: int) -> float:
    """Microseconds of programs that add all segments (a fit)."""
    return _turns(tokens, out, _WIDE) * (4.2 + 0.83 * columns / 128)


def _turns(tokens: int, out: int, tile: Tile) -> int:
    """Tiles that the busiest program works through."""
    return -(-(-(-tokens // tile.tokens) * (out // tile.rows)) // _DEVICE)


def segments(out: int, columns: int) -> int:
    """Segments that K is cut into, none shorter than four steps; short ones are equal.

    Among numbers with programs enough and room for all at once the one that loads multiprocessors
    most evenly.

    Args:
        out: rows of the weight, a multiple of 128.
        columns: K, a multiple of 128.
    """
    steps, blocks = columns // 128, out // 64
    most = max(1, steps // _LEAST_STEPS)
    counts = [n for n in range(1, most + 1) if steps % n == 0 or steps // n >= _LONG]
    enough = [n for n in counts if n * blocks >= _PROGRAMS]
    fit = [n for n in enough if n * blocks <= 3 * _DEVICE]
    if not fit:
        return min(enough, default=max(counts))
    return max(fit, key=lambda n: n * blocks / -(-n * blocks // _DEVICE))
