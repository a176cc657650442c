"""Image sources from what requests say about an image.

It does not know how images are fetched or decoded.
"""

from __future__ import annotations

import base64
import binascii
import re
from typing import cast
from urllib.parse import unquote

from deepinfer.recipe.conversation import (
    DataUrlImageSource,
    ImageDetail,
    ImageSource,
    UrlImageSource,
)
from deepinfer.recipe.failures import ConversionError
from deepinfer.recipe.shapes import quoted

# Media types that requests may name, with their usual spelling.
MEDIA_TYPES = {
    "image/jpeg": "image/jpeg",
    "image/jpg": "image/jpeg",
    "image/png": "image/png",
    "image/gif": "image/gif",
    "image/webp": "image/webp",
}
FILE_ID_UNSUPPORTED = "file_id is not supported. Pass the image as a base64 data url instead."
DEFAULT_DETAIL: ImageDetail = "high"
_MARK = "base64,"
_BASE64 = re.compile(r"[A-Za-z0-9+/]*={0,2}")
_BLANKS = re.compile(r"[\t\n\f\r ]+")


def from_any_url(url: str, detail: str | None, path: str) -> ImageSource:
    """An image from a URL to fetch or from a data URL with base64 content.

    Raises:
        ConversionError: another kind of URL, another kind of image, or broken base64.
    """
    wish = cast("ImageDetail", detail or DEFAULT_DETAIL)
    if _is_http(url):
        return UrlImageSource(url, wish, path=path)
    head, mark, data = url.strip().partition(_MARK)
    if not mark or not head.lower().startswith("data:"):
        raise ConversionError(f"{path}: Unsupported image_url format", path)
    media_type = re.split("[;,]", head[len("data:") :])[0].strip().lower()
    if media_type not in MEDIA_TYPES:
        raise ConversionError(
            f"{path}: You have uploaded an unsupported image. Please make sure your image is "
            "valid and has one of the following formats: webp, png, jpeg, and gif.",
            path,
        )
    if not _is_base64(_BLANKS.sub("", unquote(data.partition("#")[0]))):
        raise ConversionError(f"{path}: Invalid base64 data", path)
    return DataUrlImageSource(url, wish, path=path)


def from_fetched_url(url: str, place: str, path: str) -> ImageSource:
    """An image from a URL to fetch; errors name `place`, the source keeps `path`.

    Raises:
        ConversionError: the URL is not one of HTTP.
    """
    if not _is_http(url):
        raise ConversionError(f"{place}: invalid url: {quoted(url)}", place)
    return UrlImageSource(url, DEFAULT_DETAIL, path=path)


def from_base64(data: str, media_type: str, place: str, path: str) -> ImageSource:
    """An image from base64 text; errors name `place`, the source keeps `path`.

    Raises:
        ConversionError: the text is not strict base64.
    """
    padded = data + "=" if data.endswith("=") and len(data) % 4 == 3 else data
    try:
        content = base64.b64decode(padded, validate=True)
    except (binascii.Error, ValueError):
        content = None
    if content is None or base64.b64encode(content).decode() != padded:
        raise ConversionError(f"{place}: base64 decode error", place)
    url = f"data:{MEDIA_TYPES[media_type]};{_MARK}{padded}"
    return DataUrlImageSource(url, DEFAULT_DETAIL, path=path)


def _is_http(url: str) -> bool:
    return url[:4].lower() == "http"


def _is_base64(text: str) -> bool:
    """Whether text is base64 with full padding or none; unused bits may be set."""
    if not _BASE64.fullmatch(text):
        return False
    digits = text.rstrip("=")
    return len(text) % 4 == 0 and len(digits) % 4 != 1 if "=" in text else len(text) % 4 != 1
