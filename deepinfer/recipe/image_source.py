"""Where the images of a conversation are.

It does not know how they are fetched, decoded or counted.
"""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

from deepinfer.recipe.checks import check_choice, check_kind, check_text

ImageDetail: TypeAlias = Literal["low", "high", "original", "auto"]
ImageSourceKind: TypeAlias = Literal["data_url", "url", "bytes"]


class ImageSource:
    """An image that comes with a conversation. Made as one of its three subclasses."""

    __slots__ = ("_body", "_detail", "_path")
    _kind: ImageSourceKind
    _body: str | bytes
    _detail: ImageDetail
    _path: str

    def __init__(self) -> None:
        raise TypeError("an ImageSource is made as one of its subclasses")

    @property
    def kind(self) -> ImageSourceKind:
        """Which of the three kinds it is."""
        return self._kind

    @property
    def detail(self) -> ImageDetail:
        """How large the model may see it."""
        return self._detail

    @property
    def data_url(self) -> str | None:
        """The data URL, None in other kinds."""
        return self._text("data_url")

    @property
    def url(self) -> str | None:
        """The URL, None in other kinds."""
        return self._text("url")

    @property
    def data(self) -> bytes | None:
        """The bytes of the image file, None in other kinds."""
        return self._body if isinstance(self._body, bytes) else None

    @property
    def path(self) -> str:
        """Place in the request, for messages about errors; empty if it came from none."""
        return self._path

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ImageSource) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def __repr__(self) -> str:
        body = f"<{len(self._body)} bytes>" if isinstance(self._body, bytes) else repr(self._body)
        return f"{type(self).__name__}({body}, detail={self._detail!r}, path={self._path!r})"

    def _key(self) -> tuple[str, str | bytes, str, str]:
        return (self._kind, self._body, self._detail, self._path)

    def _text(self, kind: ImageSourceKind) -> str | None:
        return self._body if kind == self._kind and isinstance(self._body, str) else None

    def _fill(self, body: str | bytes, detail: ImageDetail, path: str) -> None:
        check_choice("detail", detail, get_args(ImageDetail))
        check_text("path", path)
        self._body, self._detail, self._path = body, detail, path


class DataUrlImageSource(ImageSource):
    """An image written into a `data:` URL, base64 or percent-encoded."""

    __slots__ = ()
    _kind = "data_url"

    def __init__(self, data_url: str, detail: ImageDetail = "high", *, path: str = "") -> None:
        check_text("data_url", data_url)
        self._fill(data_url, detail, path)


class UrlImageSource(ImageSource):
    """An image that has to be fetched."""

    __slots__ = ()
    _kind = "url"

    def __init__(self, url: str, detail: ImageDetail = "high", *, path: str = "") -> None:
        check_text("url", url)
        self._fill(url, detail, path)


class BytesImageSource(ImageSource):
    """An image given as the bytes of its file."""

    __slots__ = ()
    _kind = "bytes"

    def __init__(self, data: bytes, detail: ImageDetail = "high", *, path: str = "") -> None:
        check_kind("data", data, (bytes, bytearray))
        self._fill(bytes(data), detail, path)
