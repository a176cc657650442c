"""How large an image becomes for V4.1, and how many tokens it takes (recipe.md 2.15).

It does not know pixels: only widths and heights.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

PATCH = 14  # pixels of a patch of the vision tower
CELL = 3 * PATCH  # pixels of a cell: 3 x 3 patches are merged into one token
MOST_TOKENS = 1024
LEAST_PIXELS = 544 * 544
DELIMITERS = 2  # one token before and one after an image
_LONGEST_SIDE = 1170 * PATCH  # the longest that the WebP format holds, in whole patches


@dataclass(frozen=True, slots=True)
class ImageLayout:
    """The tokens of an image: a start, `rows` rows of `columns` cells and a separator, an end."""

    rows: int
    columns: int

    @property
    def tokens(self) -> int:
        """Tokens of the image."""
        return self.rows * (self.columns + 1) + DELIMITERS


def layout(width: int, height: int) -> ImageLayout:
    """Cells of an image of this many pixels, before or after fitting.

    Args:
        width: pixels; an image without any has no cells.
        height: the same.
    """
    fitted_width, fitted_height = fitted(width, height) if width and height else (width, height)
    return _cells(fitted_width, fitted_height)


def fitted(width: int, height: int) -> tuple[int, int]:
    """Pixels that an image is resized to: whole patches, enough pixels, at most 1,024 tokens.

    Args:
        width: pixels, at least 1.
        height: the same.
    """
    grown = _grown(width, height)
    if _cells(*grown).tokens <= MOST_TOKENS:
        return grown
    # The scale at which rows x (columns + 1), taken as real numbers, fill the budget; then as
    # many whole rows and columns as that leaves.
    rows, columns = height / CELL, width / CELL
    slots = MOST_TOKENS - DELIMITERS
    root = math.sqrt(rows * rows + 4 * rows * columns * slots)
    scale = (root - rows) / (2 * rows * columns)
    whole_rows, whole_columns = math.floor(rows * scale), math.floor(columns * scale)
    if whole_rows < 1:
        return (slots - 1) * CELL, CELL
    if whole_columns < 1:
        return CELL, slots // 2 * CELL
    scale = min(whole_rows * CELL / height, whole_columns * CELL / width)
    return _patches_down(width * scale), _patches_down(height * scale)


def storable(width: int, height: int) -> tuple[int, int]:
    """`fitted`, bounded to what a WebP file holds; only strips are touched."""
    width, height = fitted(width, height)
    longest = max(width, height)
    if longest <= _LONGEST_SIDE:
        return width, height
    shortest = max(
        _patches_up(min(width, height) * _LONGEST_SIDE / longest),
        _patches_up(LEAST_PIXELS / _LONGEST_SIDE),
    )
    return (_LONGEST_SIDE, shortest) if width > height else (shortest, _LONGEST_SIDE)


def lowered(width: int, height: int, longest: int) -> tuple[int, int]:
    """Pixels of an image of low detail before fitting: no side longer than `longest`."""
    if max(width, height) <= longest:
        return width, height
    scale = longest / max(width, height)
    return max(1, round(width * scale)), max(1, round(height * scale))


def _grown(width: int, height: int) -> tuple[int, int]:
    """Whole patches, and at least `LEAST_PIXELS` pixels as far as rounding lets them grow."""
    while width * height < LEAST_PIXELS:
        scale = math.sqrt(LEAST_PIXELS / (width * height))
        grown = _patches_up(math.floor(width * scale)), _patches_up(math.floor(height * scale))
        if grown == (width, height):
            break
        width, height = grown
    return _patches_up(width), _patches_up(height)


def _cells(width: int, height: int) -> ImageLayout:
    return ImageLayout(rows=-(-height // CELL), columns=-(-width // CELL))


def _patches_up(pixels: float) -> int:
    return max(1, math.ceil(pixels / PATCH)) * PATCH


def _patches_down(pixels: float) -> int:
    return max(1, math.floor(pixels / PATCH)) * PATCH
