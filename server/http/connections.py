"""Bounds on connections: how many are open, in all and from one address, how long requests may take to arrive, and how
much of a connection waits while an earlier request of it is answered.

Knows nothing of routes or keys. Invariant: a connection without a request keeps its place until another connection
needs it or its time is over, whichever comes first.
"""

from __future__ import annotations

import asyncio
import json
import logging
import resource
import uuid
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from server.http.errors import ApiError, OnError, invalid
from server.http.heads.faults import fault_of

LOG = logging.getLogger("gander.connections")
RESERVED = 96  # file descriptors kept for sockets to workers, files, and connections that are about to be refused
END_OF_HEAD = b"\r\n\r\n"  # ends a chunked body, too
PIECE_BYTES = 64  # parsed at least at a time: a few of the shortest requests, so that thousands of ends cost little
WAITING_BYTES = 16384  # received behind a request that is being answered; with more, the connection is not read


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """most, most_per_address: open connections. head_seconds: for a request's head, from when the connection opens or,
    on a used one, from its first byte. body_seconds: for its body, after that. head_bytes: path and headers."""

    most: int
    most_per_address: int
    head_bytes: int
    head_seconds: float
    body_seconds: float


@dataclass(slots=True)
class ConnectionBook:
    """All open connections, in the order in which they came, also by client address."""

    limits: ConnectionLimits
    on_error: OnError
    _by_address: dict[str, dict[GuardedProtocol, None]] = field(default_factory=dict)
    _all: dict[GuardedProtocol, None] = field(default_factory=dict)

    def admit(self, connection: GuardedProtocol) -> bool:
        """Add the connection; where that is one too many, close the oldest without a request. False if all are busy."""
        same = self._by_address.setdefault(connection.address, {})
        for others, most in ((same, self.limits.most_per_address), (self._all, self.limits.most)):
            if len(others) >= most and not self._make_room(others):
                self._forget_if_empty(connection.address)
                return False
        self._by_address.setdefault(connection.address, {})[connection] = None
        self._all[connection] = None
        return True

    def leave(self, connection: GuardedProtocol) -> None:
        """Remove the connection. It may be gone already."""
        self._all.pop(connection, None)
        self._by_address.get(connection.address, {}).pop(connection, None)
        self._forget_if_empty(connection.address)

    def _make_room(self, connections: dict[GuardedProtocol, None]) -> bool:
        idle = next((connection for connection in connections if not connection.is_busy), None)
        if idle is None:
            return False
        LOG.warning("Too many connections: the oldest ones without a request make room.")
        self.leave(idle)
        idle.transport.abort()
        return True

    def _forget_if_empty(self, address: str) -> None:
        if not self._by_address.get(address, True):
            del self._by_address[address]


class BoundedFlow(FlowControl):
    """uvicorn's flow control, which does not read on while `is_full`, whoever asks for it."""

    is_full = False

    def resume_reading(self) -> None:
        if not self.is_full:
            super().resume_reading()


class GuardedProtocol(HttpToolsProtocol):
    """uvicorn's protocol with the bounds of a `ConnectionBook`: uvicorn's own waits for a request for ever, reads a
    head of any size, parses requests without end behind one that it answers, tells only the last of them that the
    client has left, and reads the body of a request that would change the protocol as a request of its own.

    Bytes behind a request that is being answered wait unparsed. The connection is read on until there are WAITING_BYTES
    of them, because a client that leaves is only noticed where it is read.
    """

    flow: BoundedFlow

    def __init__(self, book: ConnectionBook, **given: Any) -> None:
        super().__init__(**given)
        self.address = ""
        self._book = book
        self._limits = book.limits
        self._timer: asyncio.TimerHandle | None = None
        self._unparsed = b""
        self._cycles: list[RequestResponseCycle] = []  # the requests that are being answered or wait for that
        self._num_bytes = 0  # received since the last piece of a body, or the last end of a request
        self._is_refused = False

    @property
    def is_busy(self) -> bool:
        """Whether a request is being read or answered."""
        return self.cycle is not None and not self.cycle.response_complete

    @property
    def _is_answering(self) -> bool:
        """Whether a request has come as a whole and has no whole answer yet."""
        return bool(self.pipeline) or (self.is_busy and not self.cycle.more_body)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.flow = BoundedFlow(transport)
        self.address = self.client[0] if self.client else ""
        if self._book.admit(self):
            self._expect_within(self._limits.head_seconds)
        else:
            self._refuse(ApiError(503, "Too many connections are open.", None, "too_many_connections", 1))

    def connection_lost(self, exc: Exception | None) -> None:
        self._book.leave(self)
        self._expect_nothing()
        super().connection_lost(exc)
        for cycle in self._cycles:
            cycle.disconnected = True
            cycle.message_event.set()

    def data_received(self, data: bytes) -> None:
        self._unparsed += data
        self._parse()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._parse()

    def _parse(self) -> None:
        """Parse what has come, a piece at a time, until there is a request to answer. The parser cannot be stopped
        within a piece, which may therefore hold a few requests more."""
        data, start = self._unparsed, 0
        while start < len(data) and not self._is_answering and not self.transport.is_closing():
            end = data.find(END_OF_HEAD, start + PIECE_BYTES)
            end = len(data) if end < 0 else end + len(END_OF_HEAD)
            self._num_bytes += end - start
            self._feed(data[start:end])
            if self._num_bytes > self._limits.head_bytes:
                self._refuse_head()
            start = end
        self._unparsed = data[start:]
        self._stop_reading_if_full()

    def _feed(self, piece: bytes) -> None:
        self._unset_keepalive_if_required()
        try:
            self.parser.feed_data(piece)
        except HttpParserUpgrade as upgrade:
            self._ignore_upgrade(piece[upgrade.args[0] :])
        except HttpParserError as error:
            self._refuse(invalid(f"The request is not valid HTTP: {error}.", None, "invalid_http"))

    def _ignore_upgrade(self, rest: bytes) -> None:
        """Parse a head again without its Upgrade header, which a server may ignore (RFC 9110, 7.8), and then what came
        behind it. The parser takes a body behind such a header for the new protocol's, and ends before it."""
        method, version = self.parser.get_method(), self.parser.get_http_version().encode()
        if method == b"CONNECT":
            self._refuse(ApiError(405, "This server is no proxy, and has no CONNECT.", None, "method_not_allowed"))
            return
        kept = [b"%s: %s" % header for header in self.headers if header[0] != b"upgrade"]
        head = b"\r\n".join([b"%s %s HTTP/%s" % (method, self.url, version), *kept, b"", b""])
        self.parser = HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn has it
        self._feed(head + rest)

    def _stop_reading_if_full(self) -> None:
        was_full, self.flow.is_full = self.flow.is_full, len(self._unparsed) > WAITING_BYTES
        if self.flow.is_full:
            self.flow.pause_reading()
        elif was_full:
            self.flow.resume_reading()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if self._timer is None:
            self._expect_within(self._limits.head_seconds)

    def on_headers_complete(self) -> None:
        if self.parser.should_upgrade():
            return
        size = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
        if size > self._limits.head_bytes:
            self._refuse_head()
        elif fault := fault_of(self.parser.get_http_version(), self.headers):
            self._refuse(fault)
        if not self._is_refused:
            self._expect_within(self._limits.body_seconds)
            super().on_headers_complete()
            self._cycles = [*(cycle for cycle in self._cycles if not cycle.response_complete), self.cycle]

    def on_body(self, body: bytes) -> None:
        self._num_bytes = 0
        if not self._is_refused:
            super().on_body(body)

    def on_message_complete(self) -> None:
        if self.parser.should_upgrade():
            return
        self._num_bytes = 0
        self._expect_nothing()
        if not self._is_refused:
            super().on_message_complete()

    def _expect_within(self, seconds: float) -> None:
        self._expect_nothing()
        self._timer = self.loop.call_later(seconds, self._run_out, seconds)

    def _expect_nothing(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _run_out(self, seconds: float) -> None:
        """Refuse the request as too slow; but wait on where the server itself does not read, because an earlier request
        is not answered yet."""
        if self._is_answering or self.flow.read_paused:
            self._expect_within(seconds)
        else:
            self._refuse(ApiError(408, f"The request did not come within {seconds:g} seconds.", None, "too_slow"))

    def _refuse_head(self) -> None:
        message = f"The request's head is larger than this server's limit of {self._limits.head_bytes} bytes."
        self._refuse(ApiError(431, message, None, "head_too_large"))

    def _refuse(self, error: ApiError) -> None:
        """Close the connection, with an error reply unless another reply is under way."""
        if self._is_refused or self.transport.is_closing():
            return
        self._is_refused = True
        self._book.on_error(error)
        LOG.warning("A connection was closed: %s", error.message)
        is_between = self.cycle is None or not self.cycle.response_started or self.cycle.response_complete
        if is_between and not self.pipeline:
            self.transport.write(_reply(error))
        self.transport.close()


def _reply(error: ApiError) -> bytes:
    body = json.dumps(error.body()).encode()
    head = (
        f"HTTP/1.1 {error.status} {HTTPStatus(error.status).phrase}\r\nx-request-id: req_{uuid.uuid4().hex}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
    )
    return head.encode() + body


def connections_there_is_room_for(wanted: int) -> int:
    """How many of the `wanted` connections the process has file descriptors for. Raises its soft limit first."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = wanted + RESERVED
    if soft != resource.RLIM_INFINITY and soft < needed:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    room = wanted if soft == resource.RLIM_INFINITY else min(wanted, soft - RESERVED)
    if room < wanted:
        LOG.warning("%d connections at most, for the process may have %d file descriptors.", max(room, 2), soft)
    return max(room, 2)
