"""The supervisor of one worker: it gives the process its requests, hands on what comes back and replaces a process that
died or hangs.

Owns one process after another and the worker's status; knows nothing of HTTP, text or other workers. Invariant: every
request that it was given ends or is kept for the next process, whatever becomes of the present one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Protocol

import msgspec

from decoding.config import EngineConfig
from decoding.worker.calls import calls_of
from decoding.worker.messages import (
    Abort,
    Batch,
    Beat,
    Broke,
    Compiling,
    FromWorker,
    LoadFailed,
    LoadProgress,
    Ready,
    SessionAnswer,
    SessionNews,
    StepReport,
    ToWorker,
)
from server.engine_client.open_requests import OpenRequests, Ticket
from server.engine_client.replies import End, WorkerGone
from server.engine_client.sessions.kept_sessions import MOST_BYTES
from server.engine_client.sessions.session_folder import SessionFolder
from server.engine_client.sessions.session_keeper import SessionKeeper
from server.engine_client.standby import Standby
from server.engine_client.status import EngineStatus, OnStatus
from server.engine_client.worker_process import WorkerProcess
from server.engine_client.worker_requests import WorkerRequests

LOG = logging.getLogger("gander.client")
SILENT_SECONDS = 5  # after which a worker is not taken to be ready
PATIENCE = 10  # a start, or one step of a large model, may take so many times the longest silence
STILL_PATIENCE = 100  # a load may stand still so many times as long, since it may wait for what others compile
KILLED_SECONDS = 10.0  # that a killed process has to end in, before the next one is started beside it


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartPolicy:
    """A worker that served is replaced at once. One that dies before it is ready is tried again `attempts` times, after
    delays in seconds that double from first to longest. A worker is killed after worker_timeout seconds of silence.
    has_standby keeps a process that has imported everything and stands by."""

    attempts: int = 5
    first_delay: float = 0.25
    longest_delay: float = 30.0
    worker_timeout: float = 30.0
    has_standby: bool = False

    def delay(self, failures: int) -> float:
        return min(self.first_delay * 2.0 ** (failures - 1), self.longest_delay)


class Observer(Protocol):
    """Told what happens, for metrics. worker is the worker's number."""

    def on_report(self, worker: int, report: StepReport) -> None: ...

    def on_death(self, worker: int) -> None: ...

    def on_end(self, ticket: Ticket, end: End) -> None: ...

    def on_resumed(self, num_requests: int) -> None: ...


class Supervisor:
    """Call `start`, then `give` it requests, and `close` at last. config is this worker's. standby and requests are
    shared by all workers; requests has all that are open."""

    def __init__(
        self,
        config: EngineConfig,
        standby: Standby,
        policy: RestartPolicy,
        requests: OpenRequests,
        observer: Observer,
        folder: SessionFolder | None,
    ) -> None:
        self.number = config.place
        self.status = EngineStatus()
        self.ready: Ready | None = None
        self.fingerprint: str | None = None  # of the last process that was ready
        self._announced: Ready | None = None  # by the first process that was ready
        self.requests = WorkerRequests(self.number)
        self.sessions = SessionKeeper(self._send, folder, lambda: not self.requests, MOST_BYTES // config.workers)
        self._config = config
        self._standby = standby
        self._policy = policy
        self._open = requests
        self._observer = observer
        self._process: WorkerProcess | None = None
        self._supervisor: asyncio.Task[None] | None = None
        self._listeners: list[OnStatus] = []
        self._serving = ""  # a sentence of what the process that is ready serves

    @property
    def is_serving(self) -> bool:
        return self.status.state == "ready" and self.ready is not None

    @property
    def can_run(self) -> bool:
        """Whether it can run requests now, be it that a drain lets no new ones in."""
        return self.status.state in ("ready", "draining") and self.ready is not None

    def subscribe(self, listener: OnStatus) -> None:
        """Call `listener` with every change of status from now on."""
        self._listeners.append(listener)

    def start(self) -> None:
        """Safe to call twice."""
        if self._supervisor is None:
            self._supervisor = asyncio.create_task(self._supervise(), name=f"supervisor of worker {self.number}")
            self.sessions.start()

    def give(self, tickets: Iterable[Ticket]) -> None:
        """Run these requests as soon as possible."""
        for ticket in tickets:
            self.requests.add(ticket)
        self._send_due()

    def stop(self, ticket: Ticket) -> bool:
        """Have the process end a request and free what it holds by the next step. Returns False where no process runs
        it."""
        if self.requests.is_held(ticket):
            return False
        self._send(Abort(request_id=ticket.request.request_id))
        return True

    def begin_drain(self) -> None:
        """Start no further process, unless requests are left to be run."""
        if self.status.state != "failed":
            self._set_status(state="draining", sentence="finishing what runs before stopping")

    async def close(self, leave_seconds: float) -> None:
        """Stop the worker, which has so long to leave by itself. Safe to call twice."""
        await self.sessions.close(may_ask=leave_seconds > 0)
        if self._supervisor is not None:
            self._supervisor.cancel()
            await asyncio.gather(self._supervisor, return_exceptions=True)
        if self._process is not None:
            await self._process.stop(leave_seconds if self.ready is not None else 0.0)
            self._process.close()
            self._process = None

    def _send_due(self) -> None:
        """Send the process the requests that it may run now."""
        if self.ready is not None:
            for call in calls_of(self.requests.due()):
                self._send(call)

    def _send(self, message: ToWorker) -> bool:
        """Returns False where there is no process."""
        if self._process is None:
            return False
        self._process.send(message)
        return True

    async def _supervise(self) -> None:
        """Run one process after another. Whatever goes wrong here is told, since nobody else looks after the worker."""
        try:
            await self._run_processes()
        except Exception as error:
            LOG.exception("The worker cannot be run and is given up.")
            sentence = f"the worker cannot be run: {error}"
            if self._process is not None:
                await self._process.stop(0.0)
                self._bury(self._process, sentence)
            self._set_status(state="failed", sentence=sentence, last_error=repr(error))

    async def _run_processes(self) -> None:
        failures = 0  # workers in a row that were never ready
        while not self._is_over():
            failures = 0 if await self._one_life() else failures + 1
            if failures > self._policy.attempts and not self._is_over():
                self._set_status(state="failed", sentence=f"the worker died {failures} times in a row while loading")
                LOG.error("Gave up on the worker: it died %d times in a row while loading.", failures)
            if not self._is_over():
                await asyncio.sleep(self._policy.delay(failures) if failures else 0.0)
                self._set_status(restarts=self.status.restarts + 1, fraction=0.0)

    async def _one_life(self) -> bool:
        """Run one process to its end. Returns whether it was ever ready."""
        config = self._config
        if (announced := self._announced) is not None:
            config = replace(config, kept_slots=announced.kv_slots, max_running=announced.max_running)
        limit = PATIENCE * self._policy.worker_timeout
        try:
            async with asyncio.timeout(limit):
                self._process = worker = await self._standby.take(config)
        except OSError as error:  # a TimeoutError is one
            reason = f"in {limit:g} s" if isinstance(error, TimeoutError) else f"({error})"
            LOG.error("A worker could not be started %s.", reason)
            self._set_restarting(f"a worker could not be started {reason}")
            return False
        self._set_status(worker_pid=worker.pid)
        reason = await self._end_of(worker)
        await worker.stop(0.0)
        return self._bury(worker, reason)

    async def _end_of(self, worker: WorkerProcess) -> str:
        """Hear and watch a process until it has ended. Returns what it did, as a clause."""
        listening = asyncio.create_task(worker.listen(self._on_batch), name="worker")
        watch = asyncio.create_task(self._watch(worker), name="worker watch")
        try:
            await asyncio.wait((listening, watch), return_when=asyncio.FIRST_COMPLETED)
            if listening.done():
                exit_status = listening.result()
                return worker.verdict or f"exited with status {exit_status}"
            watch.result()
            return f"{worker.verdict}, and has not ended in {KILLED_SECONDS:g} s"
        except msgspec.MsgspecError as error:
            return f"sent a frame that cannot be read ({error})"
        finally:
            listening.cancel()
            watch.cancel()
            await asyncio.gather(listening, watch, return_exceptions=True)

    async def _watch(self, worker: WorkerProcess) -> None:
        """Check every second that the worker is heard of and that its loop goes on; kill it if not. Returns where a
        killed process does not end."""
        timeout = self._policy.worker_timeout
        while worker.verdict is None:
            await asyncio.sleep(1.0)
            silence = worker.pulse.tick()
            if silence > (timeout if self.ready is not None else PATIENCE * timeout):
                worker.kill(f"was killed: nothing was heard of it for {silence} s")
            elif worker.pulse.busy_seconds > PATIENCE * timeout:
                worker.kill(f"was killed: its step took more than {PATIENCE * timeout:g} s")
            elif self.ready is None and worker.pulse.still_seconds > STILL_PATIENCE * timeout:
                worker.kill(f"was killed: its load stood still for more than {STILL_PATIENCE * timeout:g} s")
            elif silence >= SILENT_SECONDS and self.status.state in ("ready", "silent"):
                self._set_status(state="silent", sentence=f"nothing was heard of the worker for {silence} s")
            elif self.ready is not None:
                if self.status.state == "silent":
                    self._set_status(state="ready", sentence=self._serving)
                if not self.status.compiling:
                    await self._standby.prepare()
        await asyncio.sleep(KILLED_SECONDS)

    def _bury(self, worker: WorkerProcess, reason: str) -> bool:
        """Note that the process is gone, and what it may have died of. Returns whether it was ever ready."""
        running = worker.running()
        worker.close()
        ready, self._process, self.ready = self.ready, None, None
        self.sessions.on_death()
        self._observer.on_death(self.number)
        for ticket, end in self.requests.note_death(running, reason):
            self._open.end(ticket.request.request_id, end)
        LOG.error("Worker %d %s; %d requests go on with the next.", worker.pid, reason, len(self.requests))
        last_error = self.status.last_error if self.status.state == "failed" else f"worker {worker.pid} {reason}"
        self._set_status(worker_pid=None, last_error=last_error, compiling=())
        self._set_restarting(f"the worker {reason}")
        return ready is not None

    def _is_over(self) -> bool:
        """Whether no further process will be started."""
        return self.status.state == "failed" or (self.status.state == "draining" and not self.requests)

    def _on_batch(self, batch: Batch) -> None:
        for message in batch.messages:
            self._dispatch(message)

    def _dispatch(self, message: FromWorker) -> None:
        match message:
            case StepReport():
                self._observer.on_report(self.number, message)
            case Beat():
                pass  # `WorkerProcess` has taken note of it
            case LoadProgress():
                self._set_status(sentence=message.sentence, fraction=message.fraction)
            case Compiling():
                self._set_status(compiling=tuple(message.methods))
            case Ready():
                self._on_ready(message)
            case Broke():
                self._on_broke(message)
            case LoadFailed():
                self._set_status(state="failed", sentence=message.error, last_error=message.error)
            case _ if isinstance(message, SessionNews | SessionAnswer):
                self.sessions.on_news(message)
            case _:
                self._open.on_event(message)
                self._send_due()

    def _on_ready(self, ready: Ready) -> None:
        LOG.info("Worker %s serves %s.", self.status.worker_pid, ready.model)
        if ready.context_note is not None:
            LOG.warning("Worker %s: %s", self.status.worker_pid, ready.context_note)
        if self.fingerprint not in (None, ready.fingerprint):
            reason = "The worker died, and what replaced it computes in another way"
            for ticket in self.requests:
                if ticket.token_ids:
                    end = WorkerGone(f"{reason}: the reply cannot go on.", "worker_died")
                    self._open.end(ticket.request.request_id, end)
        self.ready, self.fingerprint = ready, ready.fingerprint
        self._announced = announced = self._announced or ready
        self._serving = f"serving {ready.model}"
        if ready.kv_slots < announced.kv_slots:
            self._serving += (
                f", with room for {ready.kv_slots:,} tokens instead of {announced.kv_slots:,}: memory is short"
            )
            LOG.warning("Worker %s is %s.", self.status.worker_pid, self._serving)
        self._observer.on_resumed(len(self.requests))
        self.sessions.on_ready(ready)
        self._send_due()
        if self.status.state != "draining":
            self._set_status(state="ready", sentence=self._serving, fraction=1.0)

    def _on_broke(self, broke: Broke) -> None:
        """Kill a process that gave up, since nothing more comes of it."""
        if self._process is not None:
            self._process.kill(f"gave up: {broke.error}")
        self._set_restarting(broke.error)

    def _set_restarting(self, sentence: str) -> None:
        if self.status.state not in ("failed", "draining"):
            self._set_status(state="restarting", sentence=sentence)

    def _set_status(self, **changes: object) -> None:
        self.status = replace(self.status, **changes)  # type: ignore[arg-type]
        for listener in self._listeners:
            listener(self.status)
