"""Images: sizes, tokens, limits and errors beside the wheel, pixels nearly so."""

from __future__ import annotations

import base64
import io
import math
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from deepinfer import recipe
from deepinfer.errors import ConfigError
from deepinfer.recipe import BytesImageSource, DataUrlImageSource, ImageQuota, UrlImageSource
from deepinfer.recipe.image_size import CELL, LEAST_PIXELS, MOST_TOKENS, PATCH, fitted, layout
from deepinfer.recipe.images import ImageError, ImageInfo, ImageResolver, MultiModalData
from tests.recipe.oracle import wheel

Image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
SIDES = st.one_of(st.integers(1, 40), st.integers(1, 3000), st.integers(1, 60_000))


def picture(width: int = 100, height: int = 100, mode: str = "RGB", seed: int = 0) -> Any:
    """A smooth picture: resizing and compression change little of it."""
    small = np.random.default_rng(seed).integers(0, 256, (4, 4, 3), dtype=np.uint8)
    return Image.fromarray(small).resize((width, height)).convert(mode)


def file_of(image: Any, kind: str = "PNG", **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


PNG = file_of(picture())
URL = "data:image/png;base64," + base64.b64encode(PNG).decode()


class NoFetcher:
    """Fails as the network would."""

    def fetch(self, url: str) -> bytes:
        raise ImageError(f"Failed to download image from {url}", "Fetch", is_retryable=True)


def resolver() -> ImageResolver:
    return ImageResolver(NoFetcher(), recipe.OpenCvImagePreprocessor())


def prepared(
    module: Any, data: bytes, detail: str = "high", most: int = 8192, low: int = 512
) -> Any:
    """What a module makes of a file, or kind, retry advice and text of its error."""
    options = module.PreprocessOptions(detail, most, low)
    try:
        return module.OpenCvImagePreprocessor().preprocess(data, options)
    except module.ImageError as error:
        return error.kind, error.is_retryable, str(error)


@given(SIDES, SIDES)
@example(1, 1379)
@example(364, 812)
@example(1, 50_000)
@example(50_000, 1)
def test_tokens_equal_the_wheels(width, height):
    theirs = wheel().MultiModalData([wheel().ImageInfo(b"x", width, height)])
    ours = MultiModalData([ImageInfo(b"x", width, height)])
    assert ours.image_token_adjustment() == theirs.image_token_adjustment()


@given(SIDES, SIDES)
def test_fitted_images_are_whole_patches_within_the_budget(width, height):
    fitted_width, fitted_height = fitted(width, height)
    assert fitted_width % PATCH == fitted_height % PATCH == 0
    assert layout(width, height).tokens <= MOST_TOKENS
    assert fitted_width * fitted_height > LEAST_PIXELS * 0.99
    as_it_is = -(-height // CELL) * (-(-width // CELL) + 1) + 2
    if as_it_is <= MOST_TOKENS and width * height >= LEAST_PIXELS:  # then nothing shrinks
        assert 0 <= fitted_width - width < PATCH
        assert 0 <= fitted_height - height < PATCH


@pytest.mark.parametrize(
    ("width", "height", "tokens"),
    [
        *((546, 546, 184), (560, 560, 212), (600, 600, 242), (672, 672, 274), (700, 700, 308)),
        *((1330, 700, 563), (700, 1330, 578), (1024, 512, 340), (1920, 1080, 968)),
        *((1300, 1300, 994), (4000, 4000, 994), (0, 0, 2), (0, 5, 3), (5, 0, 2)),
    ],
)
def test_known_images_have_their_tokens(width, height, tokens):
    assert layout(width, height).tokens == tokens


def test_a_row_of_cells_ends_with_a_separator():
    cells = layout(546, 560)
    assert (cells.rows, cells.columns) == (14, 13)
    assert cells.tokens == 14 * (13 + 1) + 2


@pytest.mark.parametrize(
    ("width", "height", "detail"),
    [
        *((1, 1, "high"), (100, 50, "original"), (640, 480, "auto"), (1400, 1300, "high")),
        *((640, 480, "low"), (60, 900, "low"), (3, 2000, "low"), (900, 500, "low")),
    ],
)
def test_sizes_equal_the_wheels_and_pixels_nearly(width, height, detail):
    data = file_of(picture(width, height))
    ours, theirs = (prepared(module, data, detail) for module in (recipe, wheel()))
    assert (ours.width, ours.height) == (theirs.width, theirs.height)
    pixels = [
        np.asarray(Image.open(io.BytesIO(info.data)).convert("RGB"), dtype=int)
        for info in (ours, theirs)
    ]
    assert pixels[0].shape == (ours.height, ours.width, 3)
    assert np.abs(pixels[0] - pixels[1]).mean() < 3


def test_an_image_that_only_needs_padding_is_the_wheels_byte_for_byte():
    data = file_of(picture(1000, 700))
    assert prepared(recipe, data).data == prepared(wheel(), data).data


@pytest.mark.parametrize("mode", ["L", "LA", "RGBA", "P", "I;16", "CMYK"])
def test_every_kind_of_pixel_becomes_rgb(mode):
    image = picture(600, 600, "RGB" if mode == "I;16" else mode)
    if mode == "I;16":
        image = Image.new("I;16", (600, 600), 30_000)
    if mode in ("LA", "RGBA"):
        image.putalpha(100)
    data = file_of(image, "JPEG" if mode == "CMYK" else "PNG")
    ours, theirs = (prepared(module, data) for module in (recipe, wheel()))
    pixels = [
        np.asarray(Image.open(io.BytesIO(i.data)).convert("RGB"), dtype=int) for i in (ours, theirs)
    ]
    assert np.abs(pixels[0] - pixels[1]).mean() < 3


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF"])
def test_the_first_picture_of_every_format_counts(kind):
    more = {} if kind == "JPEG" else {"save_all": True, "append_images": [picture(seed=1)]}
    data = file_of(picture(), kind, **more)
    plain = file_of(picture())
    shown = [Image.open(io.BytesIO(prepared(recipe, item).data)) for item in (data, plain)]
    pixels = [np.asarray(image.convert("RGB"), dtype=int) for image in shown]
    assert np.abs(pixels[0] - pixels[1]).mean() < 6


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"xx",
        b"GIF89a",
        b"\xff\xd8\xff\xe0",
        PNG[:30],
        file_of(picture(600, 600))[:500],
        file_of(picture(), "BMP"),
        file_of(Image.new("L", (8193, 2))),
    ],
)
def test_files_that_cannot_be_used_are_refused_as_by_the_wheel(data):
    assert prepared(recipe, data) == prepared(wheel(), data)


def source_pairs(kind: str, *values: Any, **options: Any) -> list[list[Any]]:
    return [[getattr(m, kind)(value, **options) for value in values] for m in (recipe, wheel())]


def resolved(module: Any, sources: list[Any]) -> Any:
    fetcher = NoFetcher() if module is recipe else module.ReqwestImageFetcher()
    quota = module.ImageQuota()
    try:
        images = module.ImageResolver(fetcher, module.OpenCvImagePreprocessor()).resolve(
            sources, quota
        )
    except module.ImageError as error:
        assert (quota.image_count(), quota.byte_size()) == (0, 0)
        return error.kind, error.is_retryable, str(error)
    sizes = [(image.width, image.height) for image in images.images]
    return sizes, quota.image_count(), quota.byte_size(), images.image_token_adjustment()


HALF = len(URL) // 2
URLS = [
    URL,
    *("", "data:", "data:,", "http://x", "data:image/png;base64,!!"),
    *(URL.replace("image/png", name) for name in ("image/jpg", "IMAGE/PNG", "image/bmp", "", "x")),
    *(URL.replace("data", "DATA"), URL.replace("base64", "BASE64"), URL.rstrip("=") + "\n"),
    *(URL.replace("png;", "png;x=y;"), URL.replace("base64", "base64;x=y"), " " + URL),
    *(URL.replace(":", ": "), URL + "#x", URL + "?x=1", URL + "A", URL + "==="),
    *(URL[:HALF] + blank + URL[HALF:] for blank in (" ", "\t\r\n\f", "\v", "%", "_")),
    "data:image/png," + "".join(f"%{byte:02x}" for byte in PNG),
]


@pytest.mark.parametrize("url", URLS)
def test_data_urls_are_read_as_by_the_wheel(url):
    ours, theirs = source_pairs("DataUrlImageSource", url, path="messages.0")
    assert resolved(recipe, ours) == resolved(wheel(), theirs)


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("BytesImageSource", [PNG, PNG]),
        ("BytesImageSource", [PNG, b"x"]),
        ("BytesImageSource", [b""]),
        ("BytesImageSource", [PNG] * 601),
        ("BytesImageSource", [PNG + bytes(33 << 20)]),
        ("BytesImageSource", [PNG + bytes(30 << 20)] * 3),
        ("UrlImageSource", ["ftp://x", "x", ""]),
    ],
)
@pytest.mark.parametrize("path", ["", "messages.0"])
def test_limits_and_places_of_errors_are_the_wheels(kind, values, path):
    ours, theirs = source_pairs(kind, *values, path=path)
    assert resolved(recipe, ours) == resolved(wheel(), theirs)


def test_a_failed_download_may_be_tried_again():
    ours, theirs = source_pairs("UrlImageSource", "http://127.0.0.1:1/x", path="p")
    assert resolved(recipe, ours) == resolved(wheel(), theirs)
    assert resolved(recipe, ours)[:2] == ("Fetch", True)


def test_without_pillow_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ConfigError, match=r"images need Pillow; install deepinfer-py\[images\]"):
        resolver().resolve([BytesImageSource(PNG)], ImageQuota())


def test_low_detail_is_lowered_first():
    for size in ((640, 480), (700, 700), (1000, 800), (500, 400)):
        ours, theirs = source_pairs("BytesImageSource", file_of(picture(*size)), detail="low")
        assert resolved(recipe, ours) == resolved(wheel(), theirs)


def test_a_quota_adds_up():
    quota = ImageQuota()
    data = PNG + bytes(20 << 20)
    for count in (1, 2, 3):
        resolver().resolve([BytesImageSource(data)], quota)
        assert quota.image_count() == count
        assert quota.byte_size() == count * len(data)
    with pytest.raises(ImageError, match="max 64 MB per request, got 80 MB"):
        resolver().resolve([BytesImageSource(data)], quota)
    assert quota.image_count() == 3


def test_images_of_all_sources_come_in_order():
    class Fetcher:
        def fetch(self, url: str) -> bytes:
            return file_of(picture(int(url.rpartition("/")[2]), 600))

    sources = [
        UrlImageSource("https://x/700"),
        DataUrlImageSource(URL),
        UrlImageSource("http://x/600"),
    ]
    found = ImageResolver(Fetcher(), recipe.OpenCvImagePreprocessor()).resolve(
        sources, ImageQuota()
    )
    assert [image.width for image in found.images] == [700, 546, 602]
    assert not found.is_empty()
    assert MultiModalData().is_empty()


@pytest.mark.parametrize("value", [-1, 2**32])
def test_sizes_outside_32_bits_are_refused(value):
    for call in (
        lambda: recipe.ImageInfo(b"x", value, 1),
        lambda: recipe.PreprocessOptions("low", value, 1),
    ):
        with pytest.raises(OverflowError):
            call()
    with pytest.raises(ValueError, match='invalid detail "tiny"'):
        recipe.PreprocessOptions("tiny", 1, 1)  # pyright: ignore


def test_the_longest_strips_still_fit_a_webp_file():
    ours = prepared(recipe, file_of(Image.new("L", (8000, 2))))
    theirs = prepared(wheel(), file_of(Image.new("L", (8000, 2))))
    assert (ours.width, ours.height) == (theirs.width, theirs.height)
    assert ours.width < 16_384
    assert math.prod((ours.width, ours.height)) >= LEAST_PIXELS
