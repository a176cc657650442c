"""JSON text of events: compact, keys in the order written, numbers as the wheel prints them.

It does not know which events there are.
"""

from __future__ import annotations

import json
import struct

from deepinfer.recipe.json_text import compact, parse, short_float

# A string as JSON text; other characters than the escaped ones stay as they are.
quote = json.JSONEncoder(ensure_ascii=False).encode


def quote_or_null(text: str | None) -> str:
    """The string, or `null`."""
    return "null" if text is None else quote(text)


def single(value: float) -> str:
    """A finite number that is held in single precision: the shortest digits that read back."""
    (kept,) = struct.unpack("f", struct.pack("f", value))
    for places in range(1, 9):
        short = float(f"{kept:.{places}g}")
        if struct.pack("f", short) == struct.pack("f", kept):
            return short_float(short)
    return short_float(float(f"{kept:.9g}"))


def normalised(text: str) -> str | None:
    """JSON text as parsing and writing it again gives it; None if it is no JSON.

    Integers outside 64 bits become doubles; of equal keys the last value stays.
    """
    try:
        return compact(parse(text, deep=True))
    except (ValueError, RecursionError):
        return None
