"""The bytes of an image file: out of a data URL, and which format they are.

It does not know pixels.
"""

from __future__ import annotations

import base64
import binascii
import re
from urllib.parse import unquote_to_bytes

from deepinfer.errors import DeepinferError

MOST_FILE_BYTES = 32 * 2**20
_UNSUPPORTED = (
    "You have uploaded an unsupported image. Please make sure your image is valid and has one of "
    "the following formats: webp, png, jpeg, and gif."
)
_MEDIA_TYPES = {"image/webp", "image/png", "image/jpeg", "image/jpg", "image/gif"}
_BLANKS = re.compile(rb"[\t\n\f\r ]+")
_BASE64 = re.compile(rb"[A-Za-z0-9+/]*")


class ImageError(DeepinferError):
    """An image of a request cannot be used. Handled by the user who sent it.

    Attributes:
        kind: what is wrong, such as `UnsupportedMediaType`, `TooManyImages` or `Fetch`.
        is_retryable: whether the same request may work later.
    """

    def __init__(self, message: str, kind: str = "Other", is_retryable: bool = False):
        self.kind = kind
        self.is_retryable = is_retryable
        super().__init__(message)


class CalcResizeError(DeepinferError, ValueError):
    """The size of an image cannot be found. The fitting of `image_size` always ends, so only other
    preprocessors raise it; it is here for code that catches it.
    """


def unsupported(kind: str, place: str = "image[0]") -> ImageError:
    """The error of an image that cannot be read, whatever the reason."""
    return ImageError(f"{place}: {_UNSUPPORTED}", kind)


def data_of_url(url: str, place: str) -> bytes:
    """The bytes in a data URL, base64 or percent-encoded, by the rules of browsers.

    Raises:
        ImageError: no data URL, another kind of file, or broken base64.
    """
    scheme, colon, rest = re.sub("[\t\n\r]", "", url.strip()).partition("#")[0].partition(":")
    head, comma, body = rest.partition(",")
    if not (colon and comma and scheme.lower() == "data"):
        raise unsupported("InvalidDataUrl", place)
    media_type, *parameters = [part.strip().lower() for part in head.split(";")]
    data = unquote_to_bytes(body)
    if parameters and parameters[-1] == "base64":
        data = _from_base64(_BLANKS.sub(b"", data), place)
    if media_type not in _MEDIA_TYPES:
        raise unsupported("UnsupportedMediaType", place)
    return data


def check_format(data: bytes, place: str) -> None:
    """Accept the beginning of a WebP, PNG, JPEG or GIF file.

    Raises:
        ImageError: no data, or anything else.
    """
    if not data:
        raise unsupported("EmptyImage", place)
    is_webp = data[:4] == b"RIFF" and data[8:12] == b"WEBP"
    if not is_webp and not data.startswith((b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"GIF8")):
        raise unsupported("UnsupportedMediaType", place)


def _from_base64(text: bytes, place: str) -> bytes:
    """Padding may be left out; anything else that is odd is an error."""
    digits = text.removesuffix(b"==" if text.endswith(b"==") else b"=")
    padding = b"=" * (-len(digits) % 4)
    is_whole = len(digits) % 4 != 1 and text in (digits, digits + padding)
    if not is_whole or not _BASE64.fullmatch(digits):
        raise unsupported("InvalidDataUrl", place)
    try:
        return base64.b64decode(digits + padding, validate=True)
    except binascii.Error as error:
        raise unsupported("InvalidDataUrl", place) from error
