"""A tiny HTTP server of the standard library that answers as a test tells it to."""

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = Callable[[dict[str, Any], BaseHTTPRequestHandler], None]


def send(
    handler: BaseHTTPRequestHandler,
    value: object,
    status: int = 200,
    headers: dict[str, str] | None = None,
) -> None:
    """Send a JSON value, or bytes as they are."""
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    handler.send_response(status)
    for name, text in (headers or {}).items():
        handler.send_header(name, text)
    handler.send_header("Content-Length", str(len(data)))
    handler.end_headers()
    handler.wfile.write(data)


def completion(content: str | None = "hello", **changes: Any) -> dict[str, Any]:
    """A chat completion."""
    message = {"role": "assistant", "content": content, **changes.pop("message", {})}
    choice = {"index": 0, "message": message, "finish_reason": "stop", **changes.pop("choice", {})}
    usage = {"prompt_tokens": 11, "completion_tokens": 3, "total_tokens": 14}
    return {"object": "chat.completion", "choices": [choice], "usage": usage, **changes}


class Served:
    """A running server: its address, and what it was asked."""

    def __init__(self, url: str):
        self.url = url
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.paths: list[str] = []


@contextlib.contextmanager
def served(answer: Answer) -> Iterator[Served]:
    """Run a server whose POST requests `answer` deals with; (body, handler)."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:  # the standard library's spelling
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            state.requests.append(body)
            state.headers.append(dict(self.headers))
            state.paths.append(self.path)
            with contextlib.suppress(ConnectionError):
                answer(body, self)

        def log_message(self, format: str, *args: object) -> None:
            del format, args

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    state = Served(f"http://127.0.0.1:{server.server_address[1]}/v1")
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
