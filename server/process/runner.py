"""Runs the server process from open port to exit status. Invariant: when `run` returns, no worker process is left.

The first worker imports for seconds, and so does this process: its process is started before the rest is imported.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape

from decoding.worker.allocator import settle_allocator
from server.config import ServerSettings, SettingSources
from server.engine_client.processes.standby import Standby
from server.engine_client.processes.worker_process import WORKER_COMMAND
from server.http.repeated_lines import quieten
from server.models.log_names import ModelNames
from server.process.listening import listen, send_at_once
from server.process.service_manager import ServiceManager, passed_socket

LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
SWITCH_SECONDS = 0.001  # how long a thread that works on a large body may hold the interpreter's lock at a time
MMAP_BYTES = 2**20  # bodies of this size go back to the kernel as they are freed; a read of a socket is smaller


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
    try:
        listener = passed_socket(os.environ) or listen(settings)
        send_at_once(listener)
    except OSError as error:
        where = escape(f"{settings.host} port {settings.port}")
        console = Console(stderr=True)
        console.print(f"[red]Cannot listen on {where}:[/red] {error.strerror}", highlight=False, soft_wrap=True)
        return 1
    host, port = listener.getsockname()[:2]
    settings = settings.model_copy(update={"host": host, "port": port})  # which a passed socket has of its own
    manager = ServiceManager(os.environ)
    standby = Standby(command, is_wanted=settings.standby)
    if len(models) <= 1:  # several are loaded when they are asked for
        await standby.begin()
    from server.process.serving import serve

    try:
        return await serve(listener, settings, models, standby, manager, sources)
    finally:
        await standby.close()
