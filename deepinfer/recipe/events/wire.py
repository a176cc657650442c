"""JSON text of events: compact, keys in the order written, numbers as the wheel prints them.

It does not know which events there are.
"""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Mapping
from typing import Any, cast

# A string as JSON text; other characters than the escaped ones stay as they are.
quote = json.JSONEncoder(ensure_ascii=False).encode

_EXPONENT = re.compile(r"e([+-])0?(\d+)$")
_HALF_PAIR = re.compile("[\ud800-\udfff]")
_LARGEST, _SMALLEST = 2**64 - 1, -(2**63)


def quote_or_null(text: str | None) -> str:
    """The string, or `null`."""
    return "null" if text is None else quote(text)


def number(value: float) -> str:
    """A finite double: the shortest digits that read back, plain from 1e-5 up to 1e16."""
    return _plain(repr(float(value)))


def single(value: float) -> str:
    """The same for a value that is held in single precision."""
    (kept,) = struct.unpack("f", struct.pack("f", value))
    for places in range(1, 9):
        short = float(f"{kept:.{places}g}")
        if struct.pack("f", short) == struct.pack("f", kept):
            return _plain(repr(short))
    return _plain(repr(float(f"{kept:.9g}")))


def _plain(text: str) -> str:
    match = _EXPONENT.search(text)
    if match is None:
        return text
    sign, exponent = match.groups()
    if (sign, exponent) == ("-", "5"):  # Python turns to exponents one place earlier
        minus = "-" if text[0] == "-" else ""
        return f"{minus}0.0000{text[: match.start()].lstrip('-').replace('.', '')}"
    return f"{text[: match.start()]}e{sign}{exponent}"


def compact(value: object) -> str:
    """A JSON value as text without blanks."""
    if isinstance(value, str):
        return quote(value)
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return number(value)
    if isinstance(value, Mapping):
        items = cast("Mapping[str, object]", value).items()
        return "{" + ",".join(f"{quote(key)}:{compact(item)}" for key, item in items) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(compact(item) for item in cast("list[object]", value)) + "]"
    raise TypeError(f"{type(value).__name__} is not a JSON value")


def _integer(text: str) -> int | float:
    value = int(text) if len(text) < 25 else None
    if value is not None and _SMALLEST <= value <= _LARGEST:
        return value if value or text == "0" else -0.0
    return _double(text)


def _double(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is too large for a double")
    return value


def _refuse(text: str) -> Any:
    raise ValueError(f"{text} is not JSON")


_decode = json.JSONDecoder(parse_float=_double, parse_int=_integer, parse_constant=_refuse).decode


def normalised(text: str) -> str | None:
    """JSON text as parsing and writing it again gives it; None if it is no JSON.

    Integers outside 64 bits become doubles; of equal keys the last value stays.
    """
    try:
        written = compact(_decode(text.strip(" \t\n\r")))
    except (ValueError, RecursionError):
        return None
    return None if _HALF_PAIR.search(written) else written
