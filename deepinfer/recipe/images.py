"""Images of a conversation, made ready for V4.1. Needs Pillow (the extra `images`).

It does not know the model: what comes out are WebP files of the right size.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, get_args

from deepinfer.errors import ConfigError
from deepinfer.recipe.checks import check_choice, check_kind, checked_items
from deepinfer.recipe.image_data import (
    MOST_FILE_BYTES,
    ImageError,
    check_format,
    data_of_url,
    unsupported,
)
from deepinfer.recipe.image_size import layout, lowered, storable
from deepinfer.recipe.image_source import ImageDetail, ImageSource

if TYPE_CHECKING:
    from PIL.Image import Image

MOST_IMAGES = 600
MOST_BYTES = 64 * 2**20
MOST_SIDE = 8192  # pixels of an image as it comes
LOW_SIDE = 512  # pixels that an image of low detail is lowered to
_UINT32_END = 2**32
_QUALITY = 90
_BACKGROUND = (255, 255, 255)  # behind transparent pixels
_PADDING = (127, 127, 127)  # beside an image whose sides do not fit whole patches


@dataclass(frozen=True, slots=True)
class ImageInfo:
    """An image made ready.

    Attributes:
        data: a WebP file.
        width: pixels.
        height: pixels.
    """

    data: bytes
    width: int
    height: int

    def __post_init__(self) -> None:
        for name in ("width", "height"):
            value = getattr(self, name)
            check_kind(name, value, int)
            if not 0 <= value < _UINT32_END:
                raise OverflowError(f"{name} {value} is not in [0, 2^32)")


@dataclass(frozen=True, slots=True)
class PreprocessOptions:
    """How an image is made ready.

    Attributes:
        detail: `low` lowers it first, the others leave it as large as it may be.
        max_dimension_px: the longest side that an image may have.
        low_detail_max_dimension_px: the longest side that `low` lowers it to.
    """

    detail: ImageDetail
    max_dimension_px: int
    low_detail_max_dimension_px: int

    def __post_init__(self) -> None:
        check_choice("detail", self.detail, get_args(ImageDetail))
        for name in ("max_dimension_px", "low_detail_max_dimension_px"):
            value = getattr(self, name)
            check_kind(name, value, int)
            if not 0 <= value < _UINT32_END:
                raise OverflowError(f"{name} {value} is not in [0, 2^32)")


class MultiModalData:
    """The images of a prompt, in the order of their placeholders."""

    __slots__ = ("_images",)

    def __init__(self, images: Sequence[ImageInfo] | None = None) -> None:
        self._images = checked_items("images", images, ImageInfo)

    @property
    def images(self) -> list[ImageInfo]:
        """The images."""
        return list(self._images)

    def is_empty(self) -> bool:
        """Whether there is none."""
        return not self._images

    def image_token_adjustment(self) -> int:
        """Tokens that the model sees beyond one for each placeholder."""
        return sum(layout(image.width, image.height).tokens - 1 for image in self._images)


class ImageQuota:
    """What one request has used of its limits; pass the same to every `resolve` of it."""

    __slots__ = ("_bytes", "_images")

    def __init__(self) -> None:
        self._images = 0
        self._bytes = 0

    def image_count(self) -> int:
        """Images so far."""
        return self._images

    def byte_size(self) -> int:
        """Bytes of their files."""
        return self._bytes

    def add(self, images: int, size: int) -> None:
        """Count what was made ready."""
        self._images += images
        self._bytes += size


class OpenCvImagePreprocessor:
    """Makes images ready. The name is that of the wheel; the work is done by Pillow."""

    def preprocess(self, data: bytes, options: PreprocessOptions) -> ImageInfo:
        """Fit an image file into whole patches and the token budget, as a WebP file.

        Args:
            data: a WebP, PNG, JPEG or GIF file; the first picture of an animation counts.
            options: detail and limits.

        Raises:
            ImageError: not such a file, broken, or larger than `max_dimension_px`.
            ConfigError: Pillow is not installed.
        """
        return _prepared(data, options, "image[0]")


class ImageFetcher(Protocol):
    """Gets images from URLs. The server that serves strangers has to guard its network."""

    def fetch(self, url: str) -> bytes:
        """The bytes behind a URL.

        Raises:
            ImageError: they cannot be had.
        """
        ...


class ImageResolver:
    """Gets the images of a conversation and makes them ready.

    Args:
        fetcher: for URLs.
        preprocessor: for the pixels.
    """

    def __init__(self, fetcher: ImageFetcher, preprocessor: OpenCvImagePreprocessor) -> None:
        self._fetcher = fetcher
        self._preprocessor = preprocessor

    def resolve(self, sources: Sequence[ImageSource], quota: ImageQuota) -> MultiModalData:
        """The images of `sources`, in their order; all of them, or an error and the quota unused.

        Raises:
            ImageError: an image cannot be had or read, or a limit is passed; the message begins
                with its place in the request.
        """
        count = quota.image_count() + len(sources)
        if count > MOST_IMAGES:
            path = sources[MOST_IMAGES - quota.image_count()].path
            message = f"Too many images: max {MOST_IMAGES} images per request, got {count}"
            raise ImageError(_at(path, message), "TooManyImages")
        for source in sources:
            if source.kind == "url" and not _is_http(source.url or ""):
                message = f'invalid url: "{source.url}"'
                raise ImageError(_at(source.path, message), "InvalidUrl")
        places = _places(sources)
        files: list[bytes] = []
        total = quota.byte_size()
        for source, place in zip(sources, places, strict=True):
            data = self._data(source, place)
            total += len(data)
            if total > MOST_BYTES:
                message = (
                    f"Total image size exceeds the limit: max {MOST_BYTES >> 20} MB per request, "
                    f"got {total >> 20} MB"
                )
                raise ImageError(_at(source.path, message), "TotalSizeTooLarge")
            files.append(data)
        images = [
            _prepared(data, PreprocessOptions(source.detail, MOST_SIDE, LOW_SIDE), place)
            for source, data, place in zip(sources, files, places, strict=True)
        ]
        quota.add(len(images), sum(map(len, files)))
        return MultiModalData(images)

    def _data(self, source: ImageSource, place: str) -> bytes:
        if source.data is not None:
            data = source.data
        elif source.data_url is not None:
            data = data_of_url(source.data_url, place)
        else:
            url = source.url or ""
            try:
                data = self._fetcher.fetch(url)
            except ImageError as error:
                message = str(error).removeprefix("image[0]: ")
                raise ImageError(f"{place}: {message}", error.kind, error.is_retryable) from error
        if len(data) > MOST_FILE_BYTES:
            limit = f"image file size exceeds limit {MOST_FILE_BYTES >> 20} MB"
            raise ImageError(f"{place}: {limit}", "ImageTooLarge")
        check_format(data, place)
        return data


def _at(path: str, message: str) -> str:
    return f"{path}: {message}" if path else message


def _is_http(url: str) -> bool:
    return url.lower().startswith(("http://", "https://"))


def _places(sources: Sequence[ImageSource]) -> list[str]:
    """Where each image is, for error messages: path and number among those with that path."""
    seen: dict[str, int] = {}
    places: list[str] = []
    for source in sources:
        number = seen.get(source.path, 0)
        seen[source.path] = number + 1
        places.append(f"{source.path}.image[{number}]".removeprefix("."))
    return places


def _prepared(data: bytes, options: PreprocessOptions, place: str) -> ImageInfo:
    check_format(data, place)
    try:
        from PIL import Image, ImageOps
    except ImportError as error:
        raise ConfigError("images need Pillow; install deepinfer-py[images]") from error
    try:
        image = Image.open(io.BytesIO(data), formats=("WEBP", "PNG", "JPEG", "GIF"))
    except Exception as error:  # Pillow has no narrower type for broken files
        raise unsupported("Decode", place) from error
    if max(image.size) > options.max_dimension_px:
        raise unsupported("ImageDimensionsTooLarge", place)
    try:
        image = _opaque(image)
    except Exception as error:  # the same
        raise unsupported("EmptyImage", place) from error
    if options.detail == "low":
        low = lowered(*image.size, options.low_detail_max_dimension_px)
        image = image.resize(low, Image.Resampling.BICUBIC)
    size = storable(*image.size)
    fitted = ImageOps.pad(image, size, Image.Resampling.BICUBIC, color=_PADDING)
    file = io.BytesIO()
    fitted.save(file, "WEBP", quality=_QUALITY)
    return ImageInfo(file.getvalue(), *size)


def _opaque(image: Image) -> Image:
    """The picture in RGB; what is transparent becomes white."""
    from PIL import Image as images

    if image.mode.startswith("I"):  # 16 bits a pixel: keep the upper half
        return image.convert("I").point(lambda value: value / 256).convert("RGB")
    if "A" in image.getbands() or "transparency" in image.info:
        picture = image.convert("RGBA")
        white = images.new("RGBA", picture.size, (*_BACKGROUND, 255))
        return images.alpha_composite(white, picture).convert("RGB")
    return image.convert("RGB")
