"""What a server does once its port is open, and until it stops."""

from __future__ import annotations

import logging
import socket
from collections.abc import Sequence
from functools import partial

import uvicorn
from rich.console import Console
from rich.markup import escape

from decoding.errors import ConfigError
from server.app import create_app, create_service
from server.config import ServerSettings, SettingSources
from server.engine_client.processes.standby import Standby
from server.http.connections import (
    ConnectionBook,
    ConnectionLimits,
    GuardedProtocol,
    connections_there_is_room_for,
)
from server.process.draining_server import DRAIN_MARGIN, DrainingServer
from server.process.service_manager import ServiceManager
from server.process.startup_report import report_start
from server.service import Service

LOG = logging.getLogger("gander.server")
ACCEPTED_AT_ONCE = 8  # connections accepted in one go
# Of a connection without a request. Clients (httpx: 5) and balancers (60) must be the first to close it: a request that
# is sent while the server closes is lost.
IDLE_SECONDS = 75


async def serve(
    listener: socket.socket,
    settings: ServerSettings,
    models: Sequence[ServerSettings],
    standby: Standby,
    manager: ServiceManager,
    sources: SettingSources | None,
) -> int:
    """Serve on `listener` until a signal arrives or no model can be served. Returns the exit status. Other arguments as
    of `create_service` and `run`."""
    console = Console(stderr=True)
    try:
        service = create_service(settings, models=models, standby=standby)
        service.sources = sources
    except ConfigError as error:
        listener.close()
        console.print(f"[red]Stopped:[/red] {escape(str(error))}", highlight=False, soft_wrap=True)
        return 1
    server = DrainingServer(http_config(service), service)
    address = f"http://[{settings.host}]" if ":" in settings.host else f"http://{settings.host}"
    report_start(console, service.models.models, f"{address}:{settings.port}")
    service.subscribe(manager.show)
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
