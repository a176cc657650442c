"""Requests before conversion: JSON text or plain dictionaries in the parsed form of a protocol.

It does not know the protocols; they hand in their reader.
"""

from __future__ import annotations

from typing import Any, Generic, Protocol, TypeAlias, TypeVar

from deepinfer.recipe import json_text
from deepinfer.recipe.failures import BodyError
from deepinfer.recipe.shapes import Reader, ShapeError


class _Body(Protocol):
    """What the parsed forms have in common."""

    @property
    def model(self) -> str: ...


T = TypeVar("T")
Body = TypeVar("Body", bound=_Body)
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


class ProtocolRequest(Generic[Body]):
    """What the requests of all protocols do: hold a body until conversion takes it.

    Args:
        body: JSON text, or the value of one.
        reader: of the protocol.

    Raises:
        BodyError, TypeError, ValueError, OverflowError: as `read_body`.
    """

    __slots__ = ("_held",)

    def __init__(self, body: RequestBody, reader: Reader[Body]) -> None:
        self._held: Body | None = read_body(body, reader)

    @property
    def model(self) -> str:
        """The model that is asked for. Read it before conversion."""
        return self._look().model

    def _look(self) -> Body:
        """The body, which stays."""
        if self._held is None:
            raise RuntimeError("protocol request has been consumed")
        return self._held

    def _take(self) -> Body:
        """The body, for the last time."""
        body = self._look()
        self._held = None
        return body
