"""Downloads of images from a server on this machine, beside the wheel."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from deepinfer import recipe
from deepinfer.recipe import ImageError, ReqwestImageFetcher
from tests.recipe.oracle import wheel


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers as the path says."""

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        port = self.connection.getsockname()[1]
        targets = {
            "/moved": "/ok",
            "/loop": "/loop",
            "/elsewhere": f"http://localhost:{port}/ok",
            "/ftp": "ftp://x/y",
        }
        if self.path in targets:
            self.send_response(302)
            self.send_header("Location", targets[self.path])
            self.end_headers()
            return
        name = self.path[1:]
        self.send_response(int(name) if name.isdigit() else 200)
        self.send_header("Content-Length", "30" if name == "short" else "10")
        self.end_headers()
        self.wfile.write(b"0123456789")


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    found = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=found.serve_forever, daemon=True)
    thread.start()
    yield f"127.0.0.1:{found.server_port}"
    found.shutdown()
    thread.join()
    found.server_close()


def fetched(fetcher: Any, url: str) -> Any:
    try:
        return fetcher.fetch(url)
    except (ImageError, wheel().ImageError) as error:
        return error.kind, error.is_retryable, str(error)


@pytest.mark.parametrize(
    "path",
    [
        *("/ok", "/moved", "/elsewhere", "/loop", "/ftp", "/short"),
        *("/204", "/301", "/403", "/404", "/429", "/500", "/503", "/é?q=é#x"),
    ],
)
def test_answers_are_taken_as_by_the_wheel(server, path):
    url = f"http://{server}{path}"
    assert fetched(ReqwestImageFetcher(), url) == fetched(wheel().ReqwestImageFetcher(), url)


@pytest.mark.parametrize("url", ["http://127.0.0.1:1/x", "ftp://127.0.0.1/x", "x", "", "http://"])
def test_urls_that_lead_nowhere_may_be_tried_again(url):
    kind, is_retryable, _ = fetched(ReqwestImageFetcher(), url)
    assert (kind, is_retryable) == ("Fetch", True)


def test_a_limit_of_size_holds(server):
    url = f"http://{server}/ok"
    assert ReqwestImageFetcher.with_max_bytes(10).fetch(url) == b"0123456789"
    for module in (recipe, wheel()):
        kind, is_retryable, text = fetched(module.ReqwestImageFetcher.with_max_bytes(9), url)
        assert (kind, is_retryable) == ("ImageTooLarge", False)
        assert text == "image[0]: image file size exceeds limit 0 MB"
    with pytest.raises(OverflowError):
        ReqwestImageFetcher.with_max_bytes(-1)


@pytest.mark.parametrize("module", [recipe, None], ids=["ours", "the wheel's"])
def test_the_filter_sees_every_host_and_address(server, module):
    seen: list[tuple[str, str]] = []

    def watch(host: str, address: str) -> bool:
        seen.append((host, address))
        return True

    fetcher = (module or wheel()).ReqwestImageFetcher().with_destination_filter(watch)
    assert fetcher.fetch(f"http://{server}/elsewhere") == b"0123456789"
    assert seen[0] == ("127.0.0.1", "127.0.0.1")
    assert ("localhost", "127.0.0.1") in seen


def broken(host: str, address: str) -> bool:
    raise ZeroDivisionError(host + address)


@pytest.mark.parametrize(
    ("path", "allows"),
    [
        ("/ok", lambda host, address: False),
        ("/ok", lambda host, address: 1),
        ("/ok", broken),
        ("/elsewhere", lambda host, address: host != "localhost"),
    ],
)
def test_anything_but_true_rejects_an_address(server, path, allows):
    fetcher = ReqwestImageFetcher().with_destination_filter(allows)
    kind, is_retryable, text = fetched(fetcher, f"http://{server}{path}")
    assert (kind, is_retryable) == ("DestinationRejected", False)
    assert text.startswith("image[0]: Failed to download image from http://")


def test_a_filter_has_to_be_callable():
    with pytest.raises(TypeError, match="must be callable"):
        ReqwestImageFetcher().with_destination_filter("127.0.0.1")  # pyright: ignore
