"""uvicorn's server with a stop of its own: what signals mean, when the port closes, when connections are cut.

A stop has three parts: /ready answers 503, the port closes (after SIGTERM a while later, so that routers notice), the
running requests finish.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import signal
import socket
from collections.abc import Generator
from types import FrameType

import uvicorn

from decoding.errors import ConfigError
from decoding.process.terminal import has_terminal
from server.engine_client.status import EngineStatus
from server.process.listening import BACKLOG
from server.service import Service

LOG = logging.getLogger("gander.server")
LOOK_SECONDS = 0.05  # between two looks at whether somebody is still connected
DRAIN_MARGIN = 2.0  # seconds for cut-off replies to reach their clients
LAST_WORDS_SECONDS = 1.0  # the same, where a second signal asks for haste


class DrainingServer(uvicorn.Server):
    """uvicorn's server with other rules for its end: the first signal drains, a second one stops at once, a failed
    engine stops it too, and `run` chooses the exit status."""

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self._service = service
        self.is_failed = False
        self._is_settled = False
        self._num_signals = 0
        self._had_terminal = has_terminal()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen again with a longer backlog. uvicorn uses its `backlog` also as the number of connections to accept in
        one go; that number stays small, because each takes a file descriptor before it can be refused."""
        await super().startup(sockets)
        for listener in sockets or ():
            listener.listen(BACKLOG)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close the port, and wait for the replies. What is not sent when the time is over is cut off here: uvicorn
        would cancel the requests, and log a traceback for each."""
        delay = self._service.settings.drain_seconds + DRAIN_MARGIN
        timer = asyncio.get_running_loop().call_later(delay, self._cut_connections)
        try:
            await super().shutdown(sockets)
        finally:
            timer.cancel()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        """Handle SIGINT, SIGTERM and SIGHUP, and ignore them from the end on: a process that dies by a signal after an
        orderly stop, as uvicorn has it, looks broken to whoever started it."""
        handlers = {
            signal.SIGINT: self.handle_exit,
            signal.SIGTERM: self.handle_exit,
            signal.SIGHUP: self.handle_hangup,
        }
        for number, handler in handlers.items():
            signal.signal(number, handler)
        try:
            yield
        finally:
            for number in handlers:
                signal.signal(number, signal.SIG_IGN)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002
        self._num_signals += 1
        if self._num_signals <= 2:
            stop = self._drain if self._num_signals == 1 else self._stop_at_once
            asyncio.get_running_loop().call_soon_threadsafe(stop, sig)

    def handle_hangup(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002
        asyncio.get_running_loop().call_soon_threadsafe(self._hang_up, sig)

    def _hang_up(self, number: int) -> None:
        """Read settings and API keys again, as a service does on SIGHUP; but drain where the signal says that the
        terminal of the server is closed. It may say so more than once."""
        if has_terminal() or not self._had_terminal:
            try:
                self._service.reload()
            except ConfigError as error:
                LOG.error("The settings of before still hold: %s", "; ".join(str(error).splitlines()))
        elif not self._num_signals:
            self._num_signals = 1
            self._drain(number)

    def _drain(self, number: int) -> None:
        """Begin to drain, and close the port: on SIGTERM after `drain_delay`, so that routers see 503 first; at once on
        SIGINT and SIGHUP, which a person sends, and where it was never ready, so that no router leads here."""
        service = self._service
        is_routed = number == signal.SIGTERM and self._is_settled
        LOG.info("Stopping: %d requests may still finish.", service.models.num_open)
        service.begin_drain()
        self._close_port_by(asyncio.get_running_loop().time() + service.settings.drain_delay * is_routed)

    def _close_port_by(self, deadline: float) -> None:
        """Close the port then, or as soon as nobody is connected any more: whoever routes keeps connections open."""
        loop = asyncio.get_running_loop()
        if loop.time() < deadline and self.server_state.connections:
            loop.call_later(LOOK_SECONDS, self._close_port_by, deadline)
        else:
            self._close_port()

    def _close_port(self) -> None:
        self.should_exit = True

    def _stop_at_once(self, _number: int) -> None:
        LOG.warning("Stopping at once, as asked twice.")
        self._service.stop_at_once()
        self._close_port()
        asyncio.get_running_loop().call_later(LAST_WORDS_SECONDS, self._cut_connections)

    def _cut_connections(self) -> None:
        """Close the connections that are left, whose clients do not read; their requests then end by themselves."""
        for connection in list(self.server_state.connections):
            connection.transport.abort()

    def stop_if_failed(self, status: EngineStatus) -> None:
        if status.state == "failed":
            self.is_failed = True
            self.should_exit = True

    def settle_if_ready(self, status: EngineStatus) -> None:
        """Freeze all objects that exist when the engine is first ready: they live as long as the process, and each full
        garbage collection, which stops the event loop, would visit them again."""
        if status.state == "ready" and not self._is_settled:
            self._is_settled = True
            gc.collect()
            gc.freeze()
