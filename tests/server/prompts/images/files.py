"""Files behind made-up names: a server of a folder here, to which connections to any address lead."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpcore2


class Files(SimpleHTTPRequestHandler):
    """A path that begins with /to/ is redirected to the rest of it."""

    def do_GET(self) -> None:
        self.server.asked.append(self.headers["Host"])  # type: ignore[attr-defined]
        if self.path.startswith("/to/"):
            self.send_response(302)
            self.send_header("Location", self.path.removeprefix("/to/"))
            self.end_headers()
        else:
            super().do_GET()

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def serving_files(folder: Path, asked: list[str] | None = None) -> Iterator[int]:
    """The port of a server of the folder. asked: gets the Host of each request."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Files, directory=str(folder)))
    server.asked = [] if asked is None else asked  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class To(httpcore2.AsyncNetworkBackend):
    """Connects to this port whatever is asked for. connected: the addresses that were."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.connected: list[str] = []

    async def connect_tcp(
        self,
        host: str,
        port: int,  # noqa: ARG002
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        self.connected.append(host)
        inner = httpcore2.AnyIOBackend()
        return await inner.connect_tcp("127.0.0.1", self._port, timeout, local_address, socket_options)


def answering(*addresses: str, **others: Sequence[str]) -> Callable[[str, int], Awaitable[Sequence[str]]]:
    """Resolves every name to these addresses. others: by first labels of names, those of theirs."""

    async def resolve(host: str, _: int) -> Sequence[str]:
        return others.get(host.partition(".")[0], addresses)

    return resolve
