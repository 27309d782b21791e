"""The front of the replicas: it sends a session's requests to the same replica, and ends broken streams with an error.

An ASGI application, which knows replicas only as a function and nothing of Ray. Invariant: a reply that has begun ends,
or ends with an error; a request whose reply has not begun is tried once more, on another replica.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Callable

from starlette.datastructures import Headers
from starlette.types import Message, Receive, Scope, Send

from server.http.errors import ApiError
from server.http.sender import SESSION_HEADER
from server.http.sse import EVENTS, LINES, last_event, while_connected
from server.ray.http_call import HttpRequest, ReplyHead

STREAMS = (EVENTS.media_type.encode(), LINES.media_type.encode())
ATTEMPTS = 2

Pieces = AsyncGenerator[ReplyHead | bytes]
Ask = Callable[[HttpRequest, str | None], Pieces]  # asks the session's replica; raises ReplicaLost or ApiError


class ReplicaLost(Exception):
    """The replica died or could not be reached; another one may answer."""


class Front:
    """most_bytes: the largest body that any replica takes."""

    def __init__(self, ask: Ask, most_bytes: int) -> None:
        self._ask = ask
        self._most_bytes = most_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        body = await self._read(receive)
        if body is None:
            message = f"The body is larger than this server's limit of {self._most_bytes} bytes."
            await ApiError(413, message, None, "body_too_large").response(scope)(scope, receive, send)
            return
        await while_connected(receive, self._relay(HttpRequest.of(scope, body), scope, receive, send))

    async def _read(self, receive: Receive) -> bytes | None:
        """The body; None if it is too large."""
        pieces: list[bytes] = []
        size = 0
        while True:
            message = await receive()
            size += len(message.get("body", b""))
            if size > self._most_bytes:
                return None
            pieces.append(message.get("body", b""))
            if not message.get("more_body", False):
                return b"".join(pieces)

    async def _relay(self, request: HttpRequest, scope: Scope, receive: Receive, send: Send) -> None:
        reply = _Reply(send)
        session = Headers(raw=request.headers).get(SESSION_HEADER)
        error = ApiError(503, "The replica that answered was lost.", None, "replica_lost", 1)
        for _ in range(ATTEMPTS):
            try:
                await reply.take(self._ask(request, session))
                return
            except ReplicaLost:
                if reply.head is not None:
                    break
            except ApiError as refusal:
                error = refusal
                break
        if reply.head is None:
            await error.response(scope)(scope, receive, send)
        else:
            await reply.end_with(error, request.path)


class _Reply:
    """A reply that is being sent to the client. head: once it was sent."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.head: ReplyHead | None = None

    async def take(self, pieces: Pieces) -> None:
        """Send a whole reply."""
        async with contextlib.aclosing(pieces):
            async for piece in pieces:
                if isinstance(piece, ReplyHead):
                    self.head = piece
                    await self._send({"type": "http.response.start", "status": piece.status, "headers": piece.headers})
                else:
                    await self._send(_body(piece, has_more=True))
        await self._send(_body(b"", has_more=False))

    async def end_with(self, error: ApiError, path: str) -> None:
        """End a stream with an error event in the path's format. A plain reply stays cut off, which its Content-Length
        tells the client."""
        assert self.head is not None
        is_stream = any(
            name.lower() == b"content-type" and value.startswith(STREAMS) for name, value in self.head.headers
        )
        if is_stream:
            await self._send(_body(last_event(error, path), has_more=False))


def _body(data: bytes, has_more: bool) -> Message:
    return {"type": "http.response.body", "body": data, "more_body": has_more}
