"""JSON as text, by the number rules of the prompts (recipe.md 2.4, 2.7).

It does not know what the values mean.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, NoReturn, cast

DEEPEST = 127  # levels of nesting that are read; deeper text counts as no JSON
DEEPEST_VALUE = 128  # the same of values that callers hand over
_MOST_INTEGER, _LEAST_INTEGER = 2**64 - 1, -(2**63)
_SURE_DIGITS = 18  # integers of up to so many digits fit in 64 bits
_PADDED = "e-0"  # only in Python's way to write an exponent
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def parse(text: str, *, deep: bool = False) -> Any:
    """The value of a JSON text; the last of equal keys counts, at the place of the first.

    Integers outside [-2^63, 2^64) become floats, and so does `-0`.

    Args:
        text: to be read.
        deep: read as many levels of nesting as Python can.

    Raises:
        ValueError: no JSON. That includes what Python's reader would let pass: `NaN`, numbers
            beyond a double, half of a surrogate pair, more than 127 levels of nesting.
    """
    try:
        value = _DECODER.decode(text)
    except RecursionError as error:
        raise ValueError(f"more than {DEEPEST} levels of nesting") from error
    if not deep and text.count("[") + text.count("{") > DEEPEST:
        _check_depth(value)
    if _SURROGATE.search(text):
        json.dumps(value, ensure_ascii=False).encode()
    return value


def parse_object(text: str) -> dict[str, Any] | None:
    """The value of a JSON text if it is an object; None for any other text."""
    try:
        value = parse(text)
    except ValueError:
        return None
    return cast("dict[str, Any]", value) if isinstance(value, dict) else None


def spaced(value: object) -> str:
    """`value` as V4.1 shows it: `, ` and `: `, no escapes beyond JSON's own, Python's floats."""
    return _SPACED.encode(value)


def spaced_short(value: object) -> str:
    """`value` as V4 shows it: the same, but small floats as 0.00001 and 1e-6."""
    text = _SPACED.encode(value)
    return _short_floats(value, ", ", ": ") if _PADDED in text else text


def compact(value: object) -> str:
    """`value` without blanks and with short floats, for what leaves the codec as JSON."""
    text = _COMPACT.encode(value)
    return _short_floats(value, ",", ":") if _PADDED in text else text


def checked_copy(value: object) -> Any:
    """A copy of a JSON value, tuples made lists.

    Raises:
        TypeError: a type that JSON does not have, or a key that is no text.
        ValueError: NaN, an infinity, or half of a surrogate pair.
        OverflowError: an integer outside [-2^63, 2^64).
        RecursionError: more than 128 levels of nesting.
    """
    return _copied(value, 0)


def _copied(value: object, depth: int) -> Any:
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, dict | list | tuple):
        if depth == DEEPEST_VALUE:
            raise RecursionError(f"a JSON value has more than {DEEPEST_VALUE} levels of nesting")
        if isinstance(value, dict):
            pairs = cast("dict[object, object]", value).items()
            return {_key(key): _copied(item, depth + 1) for key, item in pairs}
        return [_copied(item, depth + 1) for item in cast("list[object]", value)]
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        if not _LEAST_INTEGER <= value <= _MOST_INTEGER:
            raise OverflowError(f"integer {value} is outside the JSON number range of 64 bits")
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{value} is not a finite JSON number")
        return value
    raise TypeError(f"{type(value).__name__} is not a JSON value")


def _short_floats(value: object, comma: str, colon: str) -> str:
    if isinstance(value, dict):
        pairs = cast("dict[str, object]", value).items()
        members = [_SPACED.encode(k) + colon + _short_floats(v, comma, colon) for k, v in pairs]
        return "{" + comma.join(members) + "}"
    if isinstance(value, list):
        items = cast("list[object]", value)
        return "[" + comma.join(_short_floats(item, comma, colon) for item in items) + "]"
    return short_float(value) if isinstance(value, float) else _SPACED.encode(value)


def short_float(number: float) -> str:
    """A finite double: the shortest digits that read back, plain from 1e-5 up to 1e16."""
    mantissa, padded, exponent = repr(number).partition(_PADDED)
    if not padded:
        return mantissa
    if exponent != "5":
        return f"{mantissa}e-{exponent}"
    sign = "-" if number < 0 else ""
    return f"{sign}0.0000{mantissa.lstrip('-').replace('.', '')}"


def _key(key: object) -> str:
    if not isinstance(key, str):
        raise TypeError(f"JSON object keys must be text, not {type(key).__name__}")
    return _text(key)


def _text(text: str) -> str:
    if not text.isascii():
        text.encode()  # half of a surrogate pair raises UnicodeEncodeError, a ValueError
    return text


def _check_depth(value: object) -> None:
    level = [value]
    for _ in range(DEEPEST):
        level = [
            child
            for item in level
            if isinstance(item, dict | list)
            for child in cast("list[object]", item.values() if isinstance(item, dict) else item)
        ]
    if any(isinstance(item, dict | list) for item in level):
        raise ValueError(f"more than {DEEPEST} levels of nesting")


def _integer(digits: str) -> int | float:
    if len(digits) <= _SURE_DIGITS:
        return int(digits) if digits != "-0" else -0.0
    number = _real(digits)
    if abs(number) < 2**65 and _LEAST_INTEGER <= int(digits) <= _MOST_INTEGER:
        return int(digits)
    return number


def _real(digits: str) -> float:
    number = float(digits)
    if math.isinf(number):
        raise ValueError(f"{digits[:20]}... is beyond the range of a double")
    return number


def _constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


_DECODER = json.JSONDecoder(parse_int=_integer, parse_float=_real, parse_constant=_constant)
_SPACED = json.JSONEncoder(ensure_ascii=False, check_circular=False)
_COMPACT = json.JSONEncoder(ensure_ascii=False, check_circular=False, separators=(",", ":"))
