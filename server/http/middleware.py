"""What every request gets around its route: an id, a bound on its body, a count in the metrics, a line in the log.

Plain ASGI middleware, so that streams pass unbuffered and a client's disconnect reaches the route.
"""

from __future__ import annotations

import logging
import re
import time
import uuid
from collections.abc import Callable
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from server.http.errors import ApiError, OnError, internal_error

LOG = logging.getLogger("gander.http")
VALID_ID = re.compile(r"[A-Za-z0-9._:/+=-]{1,128}")
DISCARD_BYTES = 64 * 2**20  # read and dropped of a body that is too large, so that its sender reads the answer
QUIET_PATHS = frozenset({"/health", "/ready", "/metrics", "/is_sleeping"})


class RequestFrame:
    """The outermost middleware: it adds x-request-id to replies, answers 500 to an exception, counts and logs requests.

    on_request: called with route and status when a request ends; on_error: with the error of an exception.
    """

    def __init__(self, app: ASGIApp, on_request: Callable[[str, int], None], on_error: OnError) -> None:
        self._app = app
        self._on_request = on_request
        self._on_error = on_error

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        offered = Headers(scope=scope).get("x-request-id", "")
        request_id = offered if VALID_ID.fullmatch(offered) else f"req_{uuid.uuid4().hex}"
        scope.setdefault("state", {})["request_id"] = request_id
        status = 0
        started = time.perf_counter()

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)["x-request-id"] = request_id
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        except Exception:
            LOG.exception("Request %s broke the server.", request_id)
            error = internal_error()
            self._on_error(error)
            if status:
                raise
            await error.response(scope["path"])(scope, receive, send_with_id)
        finally:
            self._record(scope, request_id, status, time.perf_counter() - started)

    def _record(self, scope: Scope, request_id: str, status: int, seconds: float) -> None:
        route = getattr(scope.get("route"), "path", "unmatched")
        self._on_request(route, status)
        level = logging.DEBUG if scope["path"] in QUIET_PATHS else logging.INFO
        if LOG.isEnabledFor(level):
            caller = scope.get("state", {}).get("caller")
            key = f" with key {caller.label}" if caller is not None and caller.label else ""
            method, milliseconds = scope["method"], seconds * 1e3
            LOG.log(level, "Request %s%s: %s %s %d in %.1f ms.", request_id, key, method, route, status, milliseconds)


class BodyLimit:
    """Reads the whole body before the route runs, and answers 413 to one above `max_bytes`. max_put_bytes: the limit of
    an admin's PUT, whose body is an exported session."""

    def __init__(self, app: ASGIApp, max_bytes: int, max_put_bytes: int, on_error: OnError) -> None:
        self._app = app
        self._max_bytes = max_bytes
        self._max_put_bytes = max_put_bytes
        self._on_error = on_error

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] in ("GET", "HEAD", "OPTIONS"):
            await self._app(scope, receive, send)
            return
        is_session = scope["method"] == "PUT" and scope["state"]["caller"].is_admin
        most = self._max_put_bytes if is_session else self._max_bytes
        body, is_whole = await self._read(receive, Headers(scope=scope).get("content-length", ""), most)
        if body is None:
            message = f"The body is larger than this server's limit of {most} bytes."
            error = ApiError(413, message, None, "body_too_large")
            self._on_error(error)
            await error.response(scope["path"])(scope, receive, send)
            return
        replay: list[Any] = [{"type": "http.request", "body": body, "more_body": False}]
        if not is_whole:
            replay = [{"type": "http.disconnect"}]

        async def receive_again() -> Message:
            return replay.pop() if replay else await receive()

        await self._app(scope, receive_again, send)

    async def _read(self, receive: Receive, announced: str, most: int) -> tuple[bytes | None, bool]:
        """The body, or None if it has more than `most` bytes; and whether the client stayed while it was read."""
        pieces: list[bytes] = []
        size = 0
        if announced.isdecimal() and int(announced) > max(most, DISCARD_BYTES):
            return None, True
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return b"", False
            piece = message.get("body", b"")
            size += len(piece)
            if size <= most:
                pieces.append(piece)
            else:
                pieces.clear()
            if not message.get("more_body", False) or size > max(most, DISCARD_BYTES):
                return (b"".join(pieces) if size <= most else None), True
