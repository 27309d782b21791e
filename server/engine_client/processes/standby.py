"""A process that stands by: it has imported everything, which is half of a restart, and waits to be told what to load.

Owns at most one such process. It has nothing of the model in memory and may take the place of any worker.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence

from decoding.config import EngineConfig
from server.engine_client.processes.worker_process import WorkerProcess

LOG = logging.getLogger("gander.client")


LONGEST_DELAY = 300  # calls of `prepare`, one a second


class Standby:
    """Unless is_wanted no process stands by, and every worker is started when it is needed. One that dies is replaced
    after as many calls of `prepare` as have come, which double with each death until one is taken."""

    def __init__(self, command: Sequence[str], *, is_wanted: bool) -> None:
        self._command = command
        self._is_wanted = is_wanted
        self._waiting: WorkerProcess | None = None
        self._preparing = asyncio.Lock()
        self._delay = 1
        self._num_left = 0  # calls of `prepare` until one that died is replaced

    async def begin(self) -> None:
        """Start a process that will soon be taken, wanted or not, and imports meanwhile. Where none can be started
        `take` says so."""
        with contextlib.suppress(OSError):
            self._waiting = await WorkerProcess.start(self._command)

    async def prepare(self) -> None:
        """Start a process that stands by, if there is none; its imports hold up no reply. A start that fails is logged,
        since no worker needs it, and so is a death. Call it every second."""
        async with self._preparing:
            if self._waiting is not None and not self._waiting.is_alive:
                status = self._waiting.exit_status
                LOG.warning("The process that stood by exited with status %s; another in %d s.", status, self._delay)
                await self.close()
                self._num_left, self._delay = self._delay, min(2 * self._delay, LONGEST_DELAY)
            if self._num_left:
                self._num_left -= 1
            elif self._is_wanted and self._waiting is None:
                try:
                    self._waiting = await WorkerProcess.start((*self._command, "--patient"))
                except OSError as error:
                    LOG.warning("No process could be started to stand by: %s.", error)

    async def take(self, config: EngineConfig) -> WorkerProcess:
        """Give out a process that loads the model: the one that stands by, or a new one. Raises OSError where none can
        be started."""
        worker, self._waiting = self._waiting, None
        if worker is not None and not worker.is_alive:
            worker.close()
            worker = None
        if worker is not None:
            self._delay = 1
        worker = worker or await WorkerProcess.start(self._command)
        worker.load(config)
        return worker

    async def close(self) -> None:
        worker, self._waiting = self._waiting, None
        if worker is not None:
            worker.kill("was not needed")
            await worker.stop(0.0)
            worker.close()
