"""The supervisor of one worker: it starts its processes, watches them, and replaces one that died or hangs.

Owns one process after another; knows nothing of what is asked of them or said by them. Invariant: no process is left
when `close` returns.
"""

from __future__ import annotations

import asyncio
import logging

import msgspec

from server.engine_client.processes.restart_policy import RestartPolicy
from server.engine_client.processes.standby import Standby
from server.engine_client.processes.worker_process import WorkerProcess
from server.engine_client.worker import Worker

LOG = logging.getLogger("gander.client")
KILLED_SECONDS = 10.0  # that a killed process has to end in, before the next one is started beside it


class Supervisor:
    """Call `start`, and `close` at last; it may be started again. standby is shared by all workers."""

    def __init__(self, worker: Worker, standby: Standby, policy: RestartPolicy) -> None:
        self._worker = worker
        self._standby = standby
        self._policy = policy
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Safe to call twice."""
        if self._task is None:
            name = f"supervisor of worker {self._worker.number}"
            self._task = asyncio.create_task(self._supervise(), name=name)
            self._worker.sessions.start()

    async def close(self, leave_seconds: float) -> None:
        """Stop the process, which has so long to leave by itself. Safe to call twice."""
        worker = self._worker
        await worker.sessions.close(may_ask=leave_seconds > 0)
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        if (process := worker.process) is not None:
            await process.stop(leave_seconds if worker.ready is not None else 0.0)
            if worker.process is process:  # no other call was quicker
                process.close()
                worker.attach(None)

    async def _supervise(self) -> None:
        """Run one process after another. Whatever goes wrong here is told, since nobody else looks after the worker."""
        worker = self._worker
        try:
            await self._run_processes()
        except Exception as error:
            LOG.exception("The worker cannot be run and is given up.")
            sentence = f"the worker cannot be run: {error}"
            if worker.process is not None:
                await worker.process.stop(0.0)
                worker.bury(worker.process, sentence)
            worker.set_status(state="failed", sentence=sentence, last_error=repr(error))

    async def _run_processes(self) -> None:
        worker = self._worker
        failures = 0  # processes in a row that were never ready
        while not worker.is_over:
            failures = 0 if await self._one_life() else failures + 1
            if failures > self._policy.attempts and not worker.is_over:
                worker.set_status(state="failed", sentence=f"the worker died {failures} times in a row while loading")
                LOG.error("Gave up on the worker: it died %d times in a row while loading.", failures)
            if not worker.is_over:
                await asyncio.sleep(self._policy.delay(failures) if failures else 0.0)
                worker.set_status(restarts=worker.status.restarts + 1, fraction=0.0)

    async def _one_life(self) -> bool:
        """Run one process to its end. Returns whether it was ever ready."""
        worker, limit = self._worker, self._policy.start_seconds
        try:
            async with asyncio.timeout(limit):
                process = await self._standby.take(worker.config)
        except OSError as error:  # a TimeoutError is one
            reason = f"in {limit:g} s" if isinstance(error, TimeoutError) else f"({error})"
            LOG.error("A worker could not be started %s.", reason)
            worker.set_restarting(f"a worker could not be started {reason}")
            return False
        worker.attach(process)
        reason = await self._end_of(process)
        await process.stop(0.0)
        return worker.bury(process, reason)

    async def _end_of(self, process: WorkerProcess) -> str:
        """Hear and watch a process until it has ended. Returns what it did, as a clause."""
        listening = asyncio.create_task(process.listen(self._worker.hear), name="worker")
        watch = asyncio.create_task(self._watch(process), name="worker watch")
        try:
            await asyncio.wait((listening, watch), return_when=asyncio.FIRST_COMPLETED)
            if listening.done():
                exit_status = listening.result()
                return process.verdict or f"exited with status {exit_status}"
            watch.result()
            return f"{process.verdict}, and has not ended in {KILLED_SECONDS:g} s"
        except msgspec.MsgspecError as error:
            return f"sent a frame that cannot be read ({error})"
        finally:
            listening.cancel()
            watch.cancel()
            await asyncio.gather(listening, watch, return_exceptions=True)

    async def _watch(self, process: WorkerProcess) -> None:
        """Check every second that the process is heard of and that its loop goes on; kill it if not. Returns where a
        killed process does not end."""
        worker = self._worker
        while process.verdict is None:
            await asyncio.sleep(1.0)
            silence = process.pulse.tick()
            verdict = self._policy.verdict(process.pulse, silence, is_ready=worker.ready is not None)
            if verdict is not None:
                process.kill(verdict)
                break
            worker.note_silence(silence)
            if worker.can_run and not worker.status.compiling:
                await self._standby.prepare()
        await asyncio.sleep(KILLED_SECONDS)
