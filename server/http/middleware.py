"""What every request gets around its route: an id, a bound on its body, a count in the metrics, a line in the log.

Plain ASGI middleware, so that streams pass unbuffered and a client's disconnect reaches the route.
"""

from __future__ import annotations

import logging
import re
import time
import uuid
import zlib
from collections.abc import Callable, Sequence
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from server.http.errors import ApiError, OnError, internal_error, invalid, is_message
from server.http.work.turn import Turn

LOG = logging.getLogger("gander.http")
VALID_ID = re.compile(r"[A-Za-z0-9._:/+=-]{1,128}")
DISCARD_BYTES = 64 * 2**20  # read and dropped of a body that is too large, so that its sender reads the answer
PACKED = frozenset({"gzip", "x-gzip", "deflate"})
GZIP_OR_ZLIB = 32 + zlib.MAX_WBITS  # the inflater tells one from the other by its header
PIECE_BYTES, INFLATED_BYTES = 2**14, 2**18  # read of a packed body at a time, and made of that at a time
QUIET_PATHS = frozenset({"/health", "/ready", "/metrics", "/is_sleeping"})


class RequestFrame:
    """The outermost middleware: it adds x-request-id to replies, answers 500 to an exception, counts and logs requests,
    and answers HEAD with the headers of GET. Replies of Anthropic's API have request-id as well.

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
        names = ("x-request-id", "request-id") if is_message(scope) else ("x-request-id",)
        method = scope["method"]
        if is_head := method == "HEAD":
            scope = {**scope, "method": "GET"}  # the server's own stays, so that it sends no body either
        status = 0
        started = time.perf_counter()

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message).update(dict.fromkeys(names, request_id))
            elif is_head:
                message = {**message, "body": b""}
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        except Exception:
            LOG.exception("Request %s broke the server.", request_id)
            error = internal_error()
            self._on_error(error)
            if status:
                raise
            await error.response(scope)(scope, receive, send_with_id)
        finally:
            self._record(scope, method, request_id, status, time.perf_counter() - started)

    def _record(self, scope: Scope, method: str, request_id: str, status: int, seconds: float) -> None:
        route = getattr(scope.get("route"), "path", "unmatched")
        self._on_request(route, status)
        level = logging.DEBUG if scope["path"] in QUIET_PATHS else logging.INFO
        if LOG.isEnabledFor(level):
            caller = scope.get("state", {}).get("caller")
            key = f" with key {caller.label}" if caller is not None and caller.label else ""
            took = seconds * 1e3
            LOG.log(level, "Request %s%s: %s %s %d in %.1f ms.", request_id, key, method, route, status, took)


class BodyLimit:
    """Reads the whole body before the route runs, and answers 413 to one above `max_bytes`, as it is sent and unpacked.
    max_put_bytes: the limit of an admin's PUT, whose body is an exported session."""

    def __init__(self, app: ASGIApp, max_bytes: int, max_put_bytes: int, on_error: OnError) -> None:
        self._app = app
        self._max_bytes = max_bytes
        self._max_put_bytes = max_put_bytes
        self._on_error = on_error

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] in ("GET", "OPTIONS"):
            await self._app(scope, receive, send)
            return
        is_session = scope["method"] == "PUT" and scope["state"]["caller"].is_admin
        most = self._max_put_bytes if is_session else self._max_bytes
        headers = Headers(scope=scope)
        try:
            body, is_whole = await self._read(receive, headers.get("content-length", ""), most)
            if is_whole:
                body = await _unpacked(body, headers.getlist("content-encoding"), most)
        except ApiError as error:
            self._on_error(error)
            await error.response(scope)(scope, receive, send)
            return
        replay: list[Any] = [{"type": "http.request", "body": body, "more_body": False}]
        if not is_whole:
            replay = [{"type": "http.disconnect"}]

        async def receive_again() -> Message:
            return replay.pop() if replay else await receive()

        await self._app(scope, receive_again, send)

    async def _read(self, receive: Receive, announced: str, most: int) -> tuple[bytes, bool]:
        """The body, and whether the client stayed while it was read. Raises ApiError for more than `most` bytes."""
        pieces: list[bytes] = []
        size = 0
        if announced.isdecimal() and int(announced) > max(most, DISCARD_BYTES):
            raise _too_large("body", most)
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
                if size > most:
                    raise _too_large("body", most)
                return b"".join(pieces), True


async def _unpacked(body: bytes, encodings: Sequence[str], most: int) -> bytes:
    """What was packed into the body, in work and memory that `most`, its limit, bounds. encodings: the values of its
    Content-Encoding headers. Raises ApiError."""
    names = [name.strip().lower() for name in ",".join(encodings).split(",")]
    names = [name for name in names if name not in ("", "identity")]
    if not names:
        return body
    if len(names) > 1 or names[0] not in PACKED:
        message = f"The body has the Content-Encoding {', '.join(names)}; this server reads gzip, deflate and identity."
        raise ApiError(415, message, None, "unsupported_encoding")
    try:
        return await _inflated(body, most)
    except zlib.error:
        message = f"The body is not {names[0]}, as its Content-Encoding says, or it is not whole."
        raise invalid(message, None, "invalid_encoding") from None


async def _inflated(packed: bytes, most: int) -> bytes:
    inflater = zlib.decompressobj(GZIP_OR_ZLIB)
    pieces: list[bytes] = []
    size, turn = 0, Turn()
    for start in range(0, len(packed), PIECE_BYTES):
        left = packed[start : start + PIECE_BYTES]
        is_more = True
        while is_more:
            pieces.append(inflater.decompress(left, INFLATED_BYTES))
            size += len(pieces[-1])
            if size > most:
                raise _too_large("unpacked body", most)
            left = inflater.unconsumed_tail
            is_more = bool(left) or len(pieces[-1]) == INFLATED_BYTES
            await turn.share()
        if inflater.unused_data:
            raise zlib.error
    if not inflater.eof:
        raise zlib.error
    return b"".join(pieces)


def _too_large(what: str, most: int) -> ApiError:
    return ApiError(413, f"The {what} is larger than this server's limit of {most} bytes.", None, "body_too_large")
