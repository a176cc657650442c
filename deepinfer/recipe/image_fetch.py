"""Downloads images, with a limit of size and a filter of addresses.

It does not know which addresses are safe: the caller's filter does.
"""

from __future__ import annotations

import base64
import http.client
import socket
import ssl
import time
from collections.abc import Callable
from typing import TypeAlias
from urllib.parse import SplitResult, quote, unquote, urljoin, urlsplit

from deepinfer.recipe.image_data import MOST_FILE_BYTES, ImageError

DestinationFilter: TypeAlias = Callable[[str, str], bool]
_MOST_REDIRECTS = 10
_REDIRECTS = {301, 302, 303, 307, 308}
_PORTS = {"http": 80, "https": 443}
_PATIENCE_SECONDS = 30.0  # for one connection or one read
_DEADLINE_SECONDS = 120.0  # for one image, redirects included
_READ_BYTES = 2**16
_URL_MARKS = "%/:=&?~#+!$,;'@()*[]"  # characters of a URL that keep their meaning


class _Rejected(Exception):
    """No address of a host is allowed."""


class ReqwestImageFetcher:
    """Downloads images over HTTP. The name is that of the wheel; proxies are never used.

    Without a filter it connects to any address, those of the own network included.
    """

    def __init__(self) -> None:
        self._most_bytes = MOST_FILE_BYTES
        self._filter: DestinationFilter | None = None

    @staticmethod
    def with_max_bytes(max_bytes: int) -> ReqwestImageFetcher:
        """A fetcher with another limit of size.

        Raises:
            OverflowError: the limit is negative.
        """
        if max_bytes < 0:
            raise OverflowError(f"max_bytes {max_bytes} is negative")
        new = ReqwestImageFetcher()
        new._most_bytes = max_bytes
        return new

    def with_destination_filter(self, destination_filter: DestinationFilter) -> ReqwestImageFetcher:
        """A fetcher that connects only where the filter says True.

        Args:
            destination_filter: is given the host of a URL or redirect and one of its addresses,
                such as `10.0.0.1`. Anything but True, an exception too, means no. The connection
                goes to the very address that was allowed.

        Raises:
            TypeError: it cannot be called.
        """
        if not callable(destination_filter):
            raise TypeError("destination_filter must be callable")
        new = ReqwestImageFetcher.with_max_bytes(self._most_bytes)
        new._filter = destination_filter
        return new

    def fetch(self, url: str) -> bytes:
        """The bytes behind a URL, redirects followed.

        Raises:
            ImageError: kind `DestinationRejected`; `FetchStatus` with the server's refusal (worth
                another try from status 500 on); `ImageTooLarge`; `Fetch` for everything that goes
                wrong on the way, worth another try.
        """
        message = f"image[0]: Failed to download image from {url}"
        try:
            return self._follow(url, message)
        except _Rejected as error:
            raise ImageError(message, "DestinationRejected") from error
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise ImageError(message, "Fetch", is_retryable=True) from error

    def _follow(self, url: str, message: str) -> bytes:
        deadline = time.monotonic() + _DEADLINE_SECONDS
        url = url.strip()
        for _ in range(_MOST_REDIRECTS + 1):
            parts = urlsplit(url)
            connection = self._connect(parts)
            try:
                target = quote(parts.path or "/", _URL_MARKS)
                query = f"?{quote(parts.query, _URL_MARKS)}" if parts.query else ""
                connection.request("GET", target + query, headers=_headers(parts))
                response = connection.getresponse()
                where = response.getheader("Location")
                if response.status in _REDIRECTS and where:
                    url = urljoin(url, where)
                    continue
                if not 200 <= response.status < 300:
                    raise ImageError(message, "FetchStatus", is_retryable=response.status >= 500)
                return self._read(response, deadline)
            finally:
                connection.close()
        raise ValueError(f"more than {_MOST_REDIRECTS} redirects")

    def _read(self, response: http.client.HTTPResponse, deadline: float) -> bytes:
        pieces: list[bytes] = []
        size = 0
        while piece := response.read(_READ_BYTES):
            size += len(piece)
            if size > self._most_bytes:
                limit = f"image file size exceeds limit {self._most_bytes >> 20} MB"
                raise ImageError(f"image[0]: {limit}", "ImageTooLarge")
            if time.monotonic() > deadline:
                raise TimeoutError(f"no image after {_DEADLINE_SECONDS} seconds")
            pieces.append(piece)
        if response.length:
            raise http.client.IncompleteRead(b"", response.length)
        return b"".join(pieces)

    def _connect(self, parts: SplitResult) -> http.client.HTTPConnection:
        host = parts.hostname
        if parts.scheme not in _PORTS or not host:
            raise ValueError(f"no HTTP URL: {parts.geturl()}")
        port = parts.port or _PORTS[parts.scheme]
        connection = http.client.HTTPConnection(host, port, timeout=_PATIENCE_SECONDS)
        connection.sock = self._open(host, port)
        if parts.scheme == "https":
            context = ssl.create_default_context()
            connection.sock = context.wrap_socket(connection.sock, server_hostname=host)
        return connection

    def _open(self, host: str, port: int) -> socket.socket:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        addresses = dict.fromkeys(str(entry[4][0]) for entry in found)
        allowed = [address for address in addresses if self._allows(host, address)]
        if not allowed:
            raise _Rejected(f"no address of {host} is allowed")
        for address in allowed[:-1]:
            try:
                return socket.create_connection((address, port), _PATIENCE_SECONDS)
            except OSError:
                continue  # the next address may answer; the last one's error is raised
        return socket.create_connection((allowed[-1], port), _PATIENCE_SECONDS)

    def _allows(self, host: str, address: str) -> bool:
        if self._filter is None:
            return True
        try:
            return self._filter(host, address) is True
        except Exception as error:
            raise _Rejected(f"the filter failed for {address}") from error


def _headers(parts: SplitResult) -> dict[str, str]:
    headers = {"Accept": "*/*", "Accept-Encoding": "identity"}
    if parts.username is not None:
        login = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        headers["Authorization"] = f"Basic {base64.b64encode(login.encode()).decode()}"
    default = parts.port in (None, _PORTS[parts.scheme])
    name = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname or ""
    headers["Host"] = name if default else f"{name}:{parts.port}"
    return headers
