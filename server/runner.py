"""Runs the server process from open port to exit status: uvicorn, signals, start-up report, draining.

A stop has three parts: /ready answers 503, the port closes (after SIGTERM a while later, so that routers notice), the
running requests finish. Invariant: when `run` returns, no worker process is left.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import logging
import os
import signal
import socket
import sys
from collections.abc import Generator, Sequence
from functools import partial
from types import FrameType

import uvicorn
from rich.console import Console
from rich.markup import escape

from decoding.errors import ConfigError
from decoding.process.machine import cores
from decoding.process.terminal import has_terminal
from decoding.worker.allocator import settle_allocator
from server.app import create_app, create_service
from server.config import ServerSettings
from server.engine_client.status import EngineStatus
from server.engine_client.worker_process import WORKER_COMMAND
from server.http.connections import (
    ConnectionBook,
    ConnectionLimits,
    GuardedProtocol,
    connections_there_is_room_for,
)
from server.http.repeated_lines import quieten
from server.service import Service

LOG = logging.getLogger("gander.server")
LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
SWITCH_SECONDS = 0.001  # how long a thread that works on a large body may hold the interpreter's lock at a time
MMAP_BYTES = 2**20  # bodies of this size go back to the kernel as they are freed; a read of a socket is smaller
ACCEPTED_AT_ONCE = 8  # connections accepted in one go
LOOK_SECONDS = 0.05  # between two looks at whether somebody is still connected
BACKLOG = 2048  # connections that may wait to be accepted
DRAIN_MARGIN = 2.0  # seconds for cut-off replies to reach their clients
LAST_WORDS_SECONDS = 1.0  # the same, where a second signal asks for haste
EXAMPLE = {"prompt": "def fibonacci(n):\n", "max_tokens": 64, "stream": True}


def run(settings: ServerSettings, command: Sequence[str] = WORKER_COMMAND) -> int:
    """Serve until a signal arrives, or until the model turns out not to be servable. Returns the exit status."""
    logging.basicConfig(level=settings.log_level.upper(), format=LOG_FORMAT)
    quieten()
    if not sys.stderr.isatty():
        os.environ.setdefault("TQDM_DISABLE", "1")  # progress bars, also the workers', would fill a log with spaces
    sys.setswitchinterval(SWITCH_SECONDS)
    settle_allocator(MMAP_BYTES)
    return asyncio.run(_serve(settings, command))


async def _serve(settings: ServerSettings, command: Sequence[str]) -> int:
    console = Console(stderr=True)
    try:
        listener = _listen(settings)
    except OSError as error:
        where = escape(f"{settings.host} port {settings.port}")
        console.print(f"[red]Cannot listen on {where}:[/red] {error.strerror}", highlight=False, soft_wrap=True)
        return 1
    try:
        service = create_service(settings, command)
    except ConfigError as error:
        listener.close()
        console.print(f"[red]Stopped:[/red] {escape(str(error))}", highlight=False, soft_wrap=True)
        return 1
    server = _Server(http_config(service), service)
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    report = _StartupReport(console, service, f"http://{host}:{listener.getsockname()[1]}")
    service.subscribe(report.show)
    service.subscribe(server.stop_if_failed)
    service.subscribe(server.settle_if_ready)
    try:
        await server.serve(sockets=[listener])
    finally:
        await service.client.close(0.0, leave_seconds=0.0)  # the lifespan's end has closed it, unless something broke
    if server.is_failed:
        console.print(f"[red]Stopped:[/red] {escape(service.status.sentence)}", highlight=False, soft_wrap=True)
        return 1
    LOG.info("The server has stopped.")
    return 0


def http_config(service: Service) -> uvicorn.Config:
    """uvicorn's configuration for the application, with the settings' bounds on connections."""
    settings = service.settings
    most = connections_there_is_room_for(settings.max_connections)
    limits = ConnectionLimits(
        most=most,
        most_per_address=settings.max_connections_per_address or most // 2,
        head_bytes=settings.max_head_bytes,
        head_seconds=settings.head_seconds,
        body_seconds=settings.body_seconds,
    )
    book = ConnectionBook(limits, service.metrics.on_error)
    return uvicorn.Config(
        create_app(service),
        loop="asyncio",  # the loop that the tests use, also where uvloop is installed
        http=partial(GuardedProtocol, book),  # type: ignore[arg-type]
        ws="none",
        backlog=ACCEPTED_AT_ONCE,
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=int(settings.drain_seconds + DRAIN_MARGIN) + 2,  # counted from the port's closing
    )


def _listen(settings: ServerSettings) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # What it accepts inherits this, which asyncio sets only on sockets that it made itself. Without it a reply's
        # last piece waits until the client has acknowledged the one before, 40 ms where clients delay that.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        listener.bind((settings.host, settings.port))
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


class _Server(uvicorn.Server):
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
        """Read the API keys again, as a service does on SIGHUP; but drain where the signal says that the terminal of
        the server is closed. It may say so more than once."""
        if has_terminal() or not self._had_terminal:
            self._service.keys.reload()
        elif not self._num_signals:
            self._num_signals = 1
            self._drain(number)

    def _drain(self, number: int) -> None:
        """Begin to drain, and close the port: on SIGTERM after `drain_delay`, so that routers see 503 first; at once on
        SIGINT and SIGHUP, which a person sends, and where it was never ready, so that no router leads here."""
        service = self._service
        is_routed = number == signal.SIGTERM and self._is_settled
        LOG.info("Stopping: %d requests may still finish.", service.client.num_open)
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


class _StartupReport:
    """Prints the worker's progress while the server starts, then the address and a first command to try."""

    def __init__(self, console: Console, service: Service, url: str) -> None:
        self._console = console
        self._service = service
        self._url = url
        self._last = ""
        self._num_compiling = 0
        name = escape(service.settings.model_name)
        self._say(f"[bold]Gander[/bold] is starting [cyan]{name}[/cyan]; {url}/ready says when.")

    def show(self, status: EngineStatus) -> None:
        """Print each new sentence of progress once, and the address when the server becomes ready."""
        if status.state == "ready" and self._last != "ready":
            self._last = "ready"
            self._show_ready()
            self._show_compiling(status)
        elif status.state == "loading" and status.sentence != self._last:
            self._last = status.sentence
            self._console.print(
                f"[dim]{status.fraction:4.0%}[/dim]  {escape(status.sentence)}", highlight=False, soft_wrap=True
            )
        elif status.state != "ready":
            self._last = status.state
        elif len(status.compiling) != self._num_compiling:
            self._show_compiling(status)

    def _show_compiling(self, status: EngineStatus) -> None:
        """Print what is still to be compiled, or that everything is."""
        if status.compiling:
            self._say(f"Still to be compiled, and plain until then: {', '.join(status.compiling)}.")
        elif self._num_compiling:
            self._say("Everything is compiled.")
        self._num_compiling = len(status.compiling)

    def _show_ready(self) -> None:
        engine = self._service.client.ready
        assert engine is not None
        place = f"cpu with {cores()}" if engine.device == "cpu" else engine.device
        weights = "" if engine.weights == engine.dtype else f"{engine.weights} weights, "
        exactness = "exact" if engine.is_exact else "not exact on this machine"
        if engine.is_exact and engine.device != "cpu":
            exactness = "exact in batches, trees, prompts and after prefix hits, as tried on this device"
        elif engine.exact_rows and not engine.is_exact:
            exactness = (
                f"exact in batches and trees of up to {engine.exact_rows} tokens, not in prompts or after prefix hits"
            )
        self._console.print(
            f"[green]ready[/green] {escape(engine.model)}: {engine.parameters / 1e6:.1f}M parameters, "
            f"{weights}{engine.dtype} on {place}, attention {engine.attention} ({exactness}), "
            f"{engine.max_model_len} tokens, loaded in {engine.load_seconds:.1f} s",
            highlight=False,
            soft_wrap=True,
        )
        num_workers = self._service.settings.workers
        takers = "the worker takes" if num_workers == 1 else f"the {num_workers} workers take"
        num_ranks = num_workers * self._service.settings.tensor_parallel_size
        ranks = f", {engine.expected_bytes / num_ranks / 2**30:.1f} on each rank," if num_ranks > num_workers else ""
        carried = f", each with {engine.state_bytes / 2**20:.2f} MiB that layers carry" if engine.state_bytes else ""
        self._say(
            f"The KV cache has room for {engine.kv_slots:,} tokens; "
            f"{engine.max_running} requests run at a time{carried}; "
            f"once full, {takers} {engine.expected_bytes / 2**30:.1f} GiB{ranks} and what sessions remember."
        )
        if engine.context_note is not None:
            self._say(f"[yellow]{escape(engine.context_note)}[/yellow]")
        self._say(f"Open [bold cyan]{self._url}[/bold cyan] and press Race.")
        self._say(f"The API is at [bold cyan]{self._url}/v1[/bold cyan]. Try it:")
        body = json.dumps(EXAMPLE)
        command = f"  curl -N {self._url}/v1/completions -H 'Content-Type: application/json' -d '{body}'"
        self._console.print(command, highlight=False, markup=False, soft_wrap=True)

    def _say(self, sentence: str) -> None:
        self._console.print(sentence, highlight=False, soft_wrap=True)
