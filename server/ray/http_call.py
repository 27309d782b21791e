"""Calls an ASGI application without a connection: an HTTP request is a value, and its reply a stream of values.

Knows nothing of Ray. Invariant: where the caller stops reading, the application gets a disconnect, as from a client.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass

from starlette.types import ASGIApp, Message, Scope

Headers = list[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """A whole request. client: address and port."""

    method: str
    path: str
    query: bytes
    headers: Headers
    body: bytes
    client: tuple[str, int] | None

    @classmethod
    def of(cls, scope: Scope, body: bytes) -> HttpRequest:
        client = scope.get("client")
        headers = [(bytes(name), bytes(value)) for name, value in scope["headers"]]
        address = None if client is None else (str(client[0]), int(client[1]))
        return cls(scope["method"], scope["path"], scope["query_string"], headers, body, address)

    @property
    def scope(self) -> Scope:
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": self.method,
            "scheme": "http",
            "path": self.path,
            "raw_path": self.path.encode(),
            "root_path": "",
            "query_string": self.query,
            "headers": self.headers,
            "client": self.client,
            "server": None,
        }


@dataclass(frozen=True, slots=True)
class ReplyHead:
    status: int
    headers: Headers


async def call(app: ASGIApp, request: HttpRequest) -> AsyncGenerator[ReplyHead | bytes]:
    """The head, then the body as it comes. Pieces that were sent before the caller read them are joined."""
    sent: asyncio.Queue[Message | None] = asyncio.Queue()
    has_left = asyncio.Event()
    bodies = [request.body]

    async def receive() -> Message:
        if bodies:
            return {"type": "http.request", "body": bodies.pop(), "more_body": False}
        await has_left.wait()
        return {"type": "http.disconnect"}

    async def run() -> None:
        try:
            await app(request.scope, receive, sent.put)
        finally:
            sent.put_nowait(None)

    running = asyncio.ensure_future(run())
    try:
        while (message := await sent.get()) is not None:
            if message["type"] == "http.response.start":
                yield ReplyHead(message["status"], list(message["headers"]))
                continue
            pieces = [message.get("body", b"")]
            while not sent.empty() and (more := sent.get_nowait()) is not None:
                pieces.append(more.get("body", b""))
            if body := b"".join(pieces):
                yield body
            if running.done() and sent.empty():
                break
        await running
    finally:
        has_left.set()
        await asyncio.gather(running, return_exceptions=True)
