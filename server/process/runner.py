"""Runs the server process from open port to exit status. Invariant: when `run` returns, no worker process is left."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
from collections.abc import Sequence
from functools import partial

import uvicorn
from rich.console import Console
from rich.markup import escape

from decoding.errors import ConfigError
from decoding.worker.allocator import settle_allocator
from server.app import create_app, create_service
from server.config import ServerSettings, SettingSources
from server.engine_client.processes.worker_process import WORKER_COMMAND
from server.http.connections import (
    ConnectionBook,
    ConnectionLimits,
    GuardedProtocol,
    connections_there_is_room_for,
)
from server.http.repeated_lines import quieten
from server.models.log_names import ModelNames
from server.process.draining_server import BACKLOG, DRAIN_MARGIN, DrainingServer
from server.process.service_manager import ServiceManager, passed_socket
from server.process.startup_report import report_start
from server.service import Service

LOG = logging.getLogger("gander.server")
LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
SWITCH_SECONDS = 0.001  # how long a thread that works on a large body may hold the interpreter's lock at a time
MMAP_BYTES = 2**20  # bodies of this size go back to the kernel as they are freed; a read of a socket is smaller
ACCEPTED_AT_ONCE = 8  # connections accepted in one go
# Of a connection without a request. Clients (httpx: 5) and balancers (60) must be the first to close it: a request that
# is sent while the server closes is lost.
IDLE_SECONDS = 75


def run(
    settings: ServerSettings,
    models: Sequence[ServerSettings] = (),
    command: Sequence[str] = WORKER_COMMAND,
    sources: SettingSources | None = None,
) -> int:
    """Serve until a signal arrives, or until no model turns out to be servable. settings, models: as in
    `create_service`. Returns the exit status. sources: where the settings are from, to be read again when that is asked
    for."""
    logging.basicConfig(level=settings.log_level.upper(), format=LOG_FORMAT)
    for handler in logging.getLogger().handlers:
        handler.addFilter(ModelNames())
    quieten()
    if not sys.stderr.isatty():
        os.environ.setdefault("TQDM_DISABLE", "1")  # progress bars, also the workers', would fill a log with spaces
    sys.setswitchinterval(SWITCH_SECONDS)
    settle_allocator(MMAP_BYTES)
    return asyncio.run(_serve(settings, models, command, sources))


async def _serve(
    settings: ServerSettings,
    models: Sequence[ServerSettings],
    command: Sequence[str],
    sources: SettingSources | None,
) -> int:
    console = Console(stderr=True)
    try:
        listener = passed_socket(os.environ) or _listen(settings)
        _send_at_once(listener)
    except OSError as error:
        where = escape(f"{settings.host} port {settings.port}")
        console.print(f"[red]Cannot listen on {where}:[/red] {error.strerror}", highlight=False, soft_wrap=True)
        return 1
    host, port = listener.getsockname()[:2]
    settings = settings.model_copy(update={"host": host, "port": port})  # which a passed socket has of its own
    try:
        service = create_service(settings, command, models=models)
        service.sources = sources
    except ConfigError as error:
        listener.close()
        console.print(f"[red]Stopped:[/red] {escape(str(error))}", highlight=False, soft_wrap=True)
        return 1
    server = DrainingServer(http_config(service), service)
    address = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    report_start(console, service.models.models, address)
    service.subscribe(ServiceManager(os.environ).show)
    service.subscribe(server.stop_if_failed)
    service.subscribe(server.settle_if_ready)
    try:
        await server.serve(sockets=[listener])
    finally:
        await service.close_workers(0.0, leave_seconds=0.0)  # the lifespan's end has closed it, unless something broke
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
        timeout_keep_alive=IDLE_SECONDS,
        timeout_graceful_shutdown=int(settings.drain_seconds + DRAIN_MARGIN) + 2,  # counted from the port's closing
    )


def _send_at_once(listener: socket.socket) -> None:
    """What it accepts inherits this, which asyncio sets only on sockets that it made itself. Without it a reply's last
    piece waits until the client has acknowledged the one before, 40 ms where clients delay that."""
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _listen(settings: ServerSettings) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((settings.host, settings.port))
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener
