"""JSON text as data, with guards: size is the caller's business, depth and duplicates are not.

It does not know schemas.
"""

from __future__ import annotations

import json
import re

from deepinfer.errors import RequestError

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]

_BRACKETS = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{}]', re.DOTALL)
_MOST_DIGITS = 400


def read_json(text: str, nesting: int, where: str) -> Json:
    """Parse `text`.

    Args:
        text: one JSON value.
        nesting: most brackets open at once.
        where: what it is, for messages.

    Raises:
        RequestError: it is no JSON, it nests deeper, it names a key twice, or it holds NaN,
            infinity or a number of more than 400 digits; with the position in characters.
    """
    depth = 0
    for found in _BRACKETS.finditer(text):
        depth += {"[": 1, "{": 1, "]": -1, "}": -1}.get(found.group(), 0)
        if depth > nesting:
            raise RequestError(
                f"{where}: more than {nesting} nested levels at position {found.start()}"
            )

    def pairs(items: list[tuple[str, Json]]) -> Json:
        found: dict[str, Json] = dict(items)
        if len(found) != len(items):
            keys = [key for key, _ in items]
            twice = next(key for key in keys if keys.count(key) > 1)
            raise RequestError(f"{where}: the key {twice!r} stands twice in one object")
        return found

    def constant(name: str) -> Json:
        raise RequestError(f"{where}: {name} is no JSON number")

    def integer(digits: str) -> int:
        if len(digits) > _MOST_DIGITS:
            raise RequestError(f"{where}: a number of {len(digits)} digits; use at most 400")
        return int(digits)

    try:
        return json.loads(text, object_pairs_hook=pairs, parse_constant=constant, parse_int=integer)
    except json.JSONDecodeError as error:
        raise RequestError(
            f"{where}: no JSON at position {error.pos} (line {error.lineno}): {error.msg}"
        ) from None


def write_json(value: Json) -> str:
    """Compact JSON of `value`, keys in their order."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
