"""Streams: the bytes of server-sent events and of lines of JSON, and the response that sends them.

When the client disconnects, the generator of frames is closed at once. Knows nothing of what is inside a frame.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import NamedTuple, TypeVar

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from server.http.errors import MESSAGES_PATH, OLLAMA_PATHS, ApiError

CLIENT_LEFT = 499  # nobody reads this status; metrics and logs show it
RESPONSES_PATH = "/v1/responses"
DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"
EMPTY_COMMENT = b": \n\n"
PIECE_BYTES = 1024  # large enough that the tokens of one step seldom change a padded chunk's length

T = TypeVar("T")


def frame(body: Mapping[str, object]) -> bytes:
    return b"data: " + msgspec.json.encode(body) + b"\n\n"


def event_frame(event: Mapping[str, object]) -> bytes:
    """A frame with the event's type on a line of its own before the data."""
    return b"event: " + str(event["type"]).encode() + b"\n" + frame(event)


def last_event(error: ApiError, path: str) -> bytes:
    """The last bytes of a stream that broke before its first event, or outside the endpoint that wrote them, in the
    format of the path's streams."""
    if path == MESSAGES_PATH:
        return event_frame(error.message_body())
    if path.startswith(OLLAMA_PATHS):
        return line(error.ollama_body())
    if path == RESPONSES_PATH:
        return event_frame({"type": "error", "code": error.code, "message": error.message, "param": None})
    return frame(error.body()) + DONE


def padded(frames: bytes) -> bytes:
    """The frames after a comment line that pads them to a multiple of PIECE_BYTES."""
    room = -(len(frames) + len(EMPTY_COMMENT)) % PIECE_BYTES
    return EMPTY_COMMENT[:2] + b"." * room + EMPTY_COMMENT[2:] + frames


def line(body: Mapping[str, object]) -> bytes:
    return msgspec.json.encode(body) + b"\n"


def padded_lines(lines: bytes) -> bytes:
    """The lines with spaces before the last one's end, which pad them to a multiple of PIECE_BYTES."""
    return lines[:-1] + b" " * (-len(lines) % PIECE_BYTES) + lines[-1:]


class StreamForm(NamedTuple):
    """What a stream's frames are. pad: makes frames that are sent together hide how much they say."""

    media_type: str
    pad: Callable[[bytes], bytes]


EVENTS = StreamForm("text/event-stream", padded)
LINES = StreamForm("application/x-ndjson", padded_lines)


class EventStream(Response):
    """Sends frames as they come. When the client disconnects, `frames` is closed without waiting for the next one."""

    def __init__(self, frames: AsyncGenerator[bytes], media_type: str) -> None:
        headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        super().__init__(headers=headers, media_type=media_type)
        del self.headers["content-length"]
        self.frames = frames

    async def __call__(self, _: Scope, receive: Receive, send: Send) -> None:
        try:
            await while_connected(receive, self._send_frames(send))
        finally:
            await self.frames.aclose()

    async def _send_frames(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        async for data in self.frames:
            await send({"type": "http.response.body", "body": data, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def while_connected(receive: Receive, work: Awaitable[T]) -> T | None:
    """The result of `work`; None where the client disconnected first, which cancels it. Raises what `work` raises."""
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_wait_for_disconnect(receive))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        working.cancel()
        leaving.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)
    return None if working.cancelled() else working.result()


async def until_disconnect(receive: Receive, work: Awaitable[T]) -> T:
    """The result of `work`, which is not None. Raises ApiError where the client disconnects first."""
    result = await while_connected(receive, work)
    if result is None:
        raise ApiError(CLIENT_LEFT, "The client went away.", None, "client_left")
    return result


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
