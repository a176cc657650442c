"""What is raised when a request is no request, or asks for what cannot be.

It does not know HTTP; it only says which status a server should answer with.
"""

from __future__ import annotations

import re

from deepinfer.errors import DeepinferError
from deepinfer.recipe.json_text import compact

BAD_REQUEST = 400
_FIRST_SERVER_STATUS = 500
# The words of some errors spell a place as `messages.1.content.0`; `path` does not.
_DOTTED_INDEX = re.compile(r"\b(messages|content)\.(\d+)")


class BodyError(DeepinferError, ValueError):
    """A request body is no JSON, or has not the shape of the protocol. Handled by the client.

    A server answers 400. `path` is the place in the request, such as
    `messages[0].content`; it is empty when the whole body is meant.
    """

    def __init__(self, message: str, path: str = ""):
        self.path = path
        super().__init__(message)


class ConversionError(DeepinferError):
    """A request has the right shape and asks for what cannot be. Handled by the client.

    Attributes:
        status_code: HTTP status to answer with.
        body: JSON text to answer with, in the envelope of recipe.md 4.7.
        path: place in the request, such as `messages[0].content[1]`, however the message spells
            it; empty if the error has none.
    """

    def __init__(self, message: str, path: str = "", status_code: int = BAD_REQUEST):
        self.status_code = status_code
        self.path = _DOTTED_INDEX.sub(r"\1[\2]", path.removeprefix("."))
        self.body = compact({"error": _envelope(message, status_code)})
        super().__init__(message)


def _envelope(message: str, status: int) -> dict[str, str | None]:
    kind = "invalid_request_error" if status < _FIRST_SERVER_STATUS else "internal_error"
    return {"message": message, "type": kind, "param": None, "code": kind}
