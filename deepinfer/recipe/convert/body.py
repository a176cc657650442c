"""Request bodies: JSON text or plain dictionaries become the parsed form of a protocol.

It does not know the protocols; they hand in their reader.
"""

from __future__ import annotations

from typing import Any, TypeAlias, TypeVar

from deepinfer.recipe import json_text
from deepinfer.recipe.failures import BodyError
from deepinfer.recipe.shapes import Reader, ShapeError

T = TypeVar("T")
RequestBody: TypeAlias = bytes | str | dict[str, Any]


def read_body(body: RequestBody, reader: Reader[T]) -> T:
    """Read a request body.

    Raises:
        BodyError: no JSON ("invalid JSON request: ..."), or not the shape that `reader` reads
            ("invalid request body: ...").
        TypeError, ValueError, OverflowError: a dictionary holds what JSON cannot.
    """
    value = json_text.checked_copy(body) if not isinstance(body, bytes | str) else _parse(body)
    try:
        return reader(value, "")
    except ShapeError as error:
        raise BodyError(f"invalid request body: {error}", error.path) from None


def _parse(body: bytes | str) -> Any:
    if isinstance(body, str):
        body.encode()  # half of a surrogate pair raises UnicodeEncodeError
    try:
        return json_text.parse(body.decode() if isinstance(body, bytes) else body)
    except ValueError as error:
        raise BodyError(f"invalid JSON request: {error}") from error
