"""Curves over one axis as an SVG image, panel below panel. Knows nothing of what they show."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import NamedTuple

_WIDTH, _HEIGHT, _LEFT, _TOP, _GAP = 860, 130, 70, 26, 46
_RIGHT = 20
_COLOURS = ("#1f77b4", "#d95f02", "#2a9d4f", "#7b3fa0", "#c2185b", "#8d6e1f", "#455a64", "#00838f")
_TICKS = 4


class Series(NamedTuple):
    """Values over places on the axis; a line, or `dots`."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    dots: bool = False


class Panel(NamedTuple):
    """Series with one scale, from 0 or, if `log`, from the power of ten below the least value."""

    title: str
    series: Sequence[Series]
    log: bool = False


def ticks(most: float) -> list[float]:
    """Round numbers from 0 to at least `most`, four to eight steps apart."""
    if most <= 0:
        return [0.0, 1.0]
    power = 10.0 ** math.floor(math.log10(most / _TICKS))
    step = next(power * m for m in (1, 2, 5, 10) if power * m * 2 * _TICKS >= most)
    return [step * i for i in range(math.ceil(most / step - 1e-9) + 1)]


def _decades(values: Sequence[float]) -> list[float]:
    """Powers of ten around positive values."""
    low = math.floor(math.log10(min(values)))
    return [10.0**i for i in range(low, max(math.ceil(math.log10(max(values))), low + 1) + 1)]


def draw(panels: Sequence[Panel], end: float, axis: str) -> str:
    """The image as text.

    Args:
        panels: from the top; values are finite, and positive in logarithmic panels.
        end: of the axis, which starts at 0.
        axis: what it counts.
    """
    total = len(panels) * (_HEIGHT + _GAP) + _TOP
    width = _LEFT + _WIDTH + _RIGHT
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{total}" '
        f'viewBox="0 0 {width} {total}" font-family="sans-serif" font-size="11">',
        f'<rect width="{width}" height="{total}" fill="white"/>',
    ]
    end = max(end, 1e-9)
    across = [mark for mark in ticks(end) if mark <= end]
    for place, panel in enumerate(panels):
        parts += _panel(panel, place * (_HEIGHT + _GAP) + _TOP, end, across)
    parts.append(f'<text x="{_LEFT + _WIDTH}" y="{total - 6}" text-anchor="end">{axis}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def _panel(panel: Panel, top: float, end: float, across: Sequence[float]) -> list[str]:
    values = [value for series in panel.series for value in series.y]
    log = panel.log and bool(values)
    marks = _decades(values) if log else ticks(max(values, default=0))
    low, high = ((math.log10(m) if log else m) for m in (marks[0], marks[-1]))

    def right(x: float) -> float:
        return _LEFT + _WIDTH * x / end

    def down(y: float) -> float:
        return top + _HEIGHT * (1 - ((math.log10(y) if log else y) - low) / (high - low))

    parts = [f'<text x="{_LEFT}" y="{top - 8}" font-weight="bold">{escape(panel.title)}</text>']
    for mark in marks:
        y = down(mark)
        parts.append(
            f'<line x1="{_LEFT}" x2="{_LEFT + _WIDTH}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>'
            f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{mark:g}</text>'
        )
    for mark in across:
        x, y = right(mark), top + _HEIGHT
        parts.append(
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{y}" y2="{y + 4}" stroke="#444"/>'
            f'<text x="{x:.1f}" y="{y + 15}" text-anchor="middle">{mark:g}</text>'
        )
    legend = _LEFT + _WIDTH
    for place, series in reversed(list(enumerate(panel.series))):
        colour = _COLOURS[place % len(_COLOURS)]
        points = [(right(x), down(y)) for x, y in zip(series.x, series.y, strict=True)]
        if series.dots:
            parts += [
                f'<circle cx="{x:.1f}" cy="{y:.1f}" r="1.2" fill="{colour}"/>' for x, y in points
            ]
        else:
            path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
            parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}"/>')
        parts.append(
            f'<text x="{legend}" y="{top - 8}" text-anchor="end" fill="{colour}">'
            f"{escape(series.label)}</text>"
        )
        legend -= 7 * len(series.label) + 14
    return parts
