"""An HTTP client for benchmarks: one connection for each request, and bytes are passed on as they arrive.

Knows nothing of what is sent. A client library would take three times the processor time for each event of a stream,
and the clients share the machine with the server that they measure.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import urlsplit

import httptools

from server.bench.errors import AddressError

OnBytes = Callable[[bytes], None]


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server is. prefix: before all of its paths; headers: sent with every request."""

    host: str
    port: int
    is_tls: bool
    prefix: str
    headers: str

    @classmethod
    def of(cls, url: str, api_key: str | None) -> Address:
        """url: with or without /v1 at its end. Raises AddressError where it is not of the form http://host:port."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise AddressError(f"{url} is no address of the form http://host:port")
        is_tls = parts.scheme == "https"
        headers = f"Host: {parts.netloc}\r\nContent-Type: application/json\r\nConnection: close\r\n"
        if api_key is not None:
            headers += f"Authorization: Bearer {api_key}\r\n"
        prefix = parts.path.rstrip("/").removesuffix("/v1")
        return cls(parts.hostname, parts.port or (443 if is_tls else 80), is_tls, prefix, headers)

    async def exchange(self, method: str, path: str, body: bytes, on_bytes: OnBytes) -> int:
        """Send one request and pass the reply's body on, piece by piece. Returns the status when the reply has ended.

        Raises OSError where there is no connection, or where it ends before the reply does.
        """
        loop = asyncio.get_running_loop()
        context = ssl.create_default_context() if self.is_tls else None
        transport, reading = await loop.create_connection(lambda: _Reading(on_bytes), self.host, self.port, ssl=context)
        try:
            head = f"{method} {self.prefix}{path} HTTP/1.1\r\n{self.headers}Content-Length: {len(body)}\r\n\r\n"
            transport.write(head.encode() + body)
            return await reading.status
        finally:
            transport.close()


class _Reading(asyncio.Protocol):
    """The reading side of one connection, with the methods that httptools calls."""

    def __init__(self, on_bytes: OnBytes) -> None:
        self.status: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._on_bytes = on_bytes
        self._parser = httptools.HttpResponseParser(self)

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(f"the reply could not be read: {error}")

    def on_body(self, body: bytes) -> None:
        self._on_bytes(body)

    def on_message_complete(self) -> None:
        if not self.status.done():
            self.status.set_result(self._parser.get_status_code())

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(f"the connection ended before the reply did: {exc or 'closed by the server'}")

    def _fail(self, sentence: str) -> None:
        if not self.status.done():
            self.status.set_exception(ConnectionError(sentence))
