"""The asyncio side of the worker: submit and abort requests, route what comes back, restart what died or hangs.

Owns the engine's status; knows nothing of HTTP or text. The invariant: every submitted request gets exactly one end,
whatever becomes of the worker. A request outlives its worker: the next one goes on with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import msgspec

from decoding.config import EngineConfig
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
    Submit,
    ToWorker,
)
from server.engine_client.deadlines import Deadlines
from server.engine_client.open_requests import OpenRequests, Ticket
from server.engine_client.queue_gate import QueueGate, QueueLimits
from server.engine_client.replies import End, Replies, WorkerGone
from server.engine_client.session_folder import SessionFolder
from server.engine_client.session_keeper import SessionKeeper
from server.engine_client.standby import Standby
from server.engine_client.status import EngineStatus, OnStatus
from server.engine_client.worker_process import WORKER_COMMAND, WorkerProcess
from server.http.errors import unavailable

LOG = logging.getLogger("gander.client")
LEAVE_SECONDS = 5.0  # for the worker, once nothing runs any more
SILENT_SECONDS = 5  # after which a worker is not taken to be ready
PATIENCE = 10  # so many times longer than its silence may be a worker's start, or a step of a large model


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartPolicy:
    """A worker that served is replaced at once. One that dies before it is ready is tried again `attempts` times, after
    delays that double from first to longest. worker_timeout: seconds of silence after which a worker is killed;
    has_standby: keep a process waiting that has its imports done."""

    attempts: int = 5
    first_delay: float = 0.25
    longest_delay: float = 30.0
    worker_timeout: float = 30.0
    has_standby: bool = False

    def delay(self, failures: int) -> float:
        return min(self.first_delay * 2.0 ** (failures - 1), self.longest_delay)


class Observer(Protocol):
    """Told what happens, for metrics."""

    def on_report(self, report: StepReport) -> None: ...

    def on_end(self, ticket: Ticket, end: End) -> None: ...

    def on_resumed(self, num_requests: int) -> None: ...


class EngineClient:
    """`start`, then `submit`; `close` at last. patience: see Replies."""

    def __init__(
        self,
        config: EngineConfig,
        limits: QueueLimits,
        observer: Observer,
        command: Sequence[str] = WORKER_COMMAND,
        policy: RestartPolicy | None = None,
        patience: float = 15.0,
        sessions_folder: SessionFolder | None = None,
    ) -> None:
        self._observer = observer
        self._policy = policy or RestartPolicy()
        self._patience = patience
        self._worker: WorkerProcess | None = None
        self._standby = Standby(command, config, is_wanted=self._policy.has_standby)
        self._requests = OpenRequests(self._on_end)
        self._gate = QueueGate(limits, self._requests)
        self._deadlines = Deadlines(self._requests, self._gate, self.abort)
        self._supervisor: asyncio.Task[None] | None = None
        self.status = EngineStatus()
        self.ready: Ready | None = None
        self._fingerprint: str | None = None  # of the last worker that was ready
        self._listeners: list[OnStatus] = []
        self.sessions = SessionKeeper(self._send, sessions_folder, lambda: self.num_open == 0)

    @property
    def num_open(self) -> int:
        """Requests without an end."""
        return len(self._requests)

    def num_by_tenant(self) -> Counter[tuple[str, bool]]:
        """Requests without an end, by whose they are and whether they have a first token."""
        return self._requests.num_by_tenant()

    def subscribe(self, listener: OnStatus) -> None:
        """Call `listener` with every change of status from now on."""
        self._listeners.append(listener)

    def start(self) -> None:
        self._supervisor = asyncio.create_task(self._supervise(), name="worker supervisor")
        self.sessions.start()

    def submit(self, requests: Sequence[Submit], timeout: float | None = None) -> Replies:
        """Run one call's requests; raises ApiError if the engine cannot take all of them now. timeout: seconds for all
        of the call."""
        status, ready = self.status, self.ready
        if status.state != "ready" or self._worker is None or ready is None:
            raise unavailable(f"The engine is not ready: {status.sentence}.", f"engine_{status.state}", 2)
        # A ticket ends after the engine's part is over, so what passes here passes there.
        self._gate.check(requests, ready.max_running)
        replies = Replies([request.request_id for request in requests], self.abort, self._patience)
        self._deadlines.set(replies, requests, timeout)
        for choice, request in enumerate(requests):
            self._requests.add(Ticket(request, replies, choice))
        self._send_due()
        return replies

    def abort(self, request_ids: Sequence[str]) -> None:
        """Free what these requests hold by the next step; ids that have ended are ignored."""
        for request_id in request_ids:
            if request_id not in self._requests:
                continue
            if self._requests.is_held(request_id):
                self._requests.abort(request_id)
            else:
                self._requests.note_abort(request_id)
                self._send(Abort(request_id=request_id))

    def _on_end(self, ticket: Ticket, end: End) -> None:
        self._gate.note_end(ticket)
        self._observer.on_end(ticket, end)

    def begin_drain(self, seconds: float) -> None:
        """Take no more requests; running ones have `seconds` to end, then they fail."""
        if self.status.state not in ("failed", "draining"):
            self._set_status(state="draining", sentence="finishing what runs before stopping")
            asyncio.get_running_loop().call_later(seconds, self.cut_off)

    def cut_off(self) -> None:
        """Wait no longer for what runs."""
        if self.num_open:
            LOG.warning("%d requests were cut off by the stop.", self.num_open)
            for request_id in self._requests.ids():
                self._send(Abort(request_id=request_id))
            self._requests.end_all(WorkerGone("The server is stopping.", "server_stopping"))

    async def close(self, seconds: float, leave_seconds: float = LEAVE_SECONDS) -> None:
        """Drain, then see the worker off, which has `leave_seconds` to go by itself. Safe to call twice."""
        self.begin_drain(seconds)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._requests.wait_until_empty()
        self.cut_off()
        await self.sessions.close(can_ask=self.ready is not None and leave_seconds > 0)
        if self._supervisor is not None:
            self._supervisor.cancel()
            await asyncio.gather(self._supervisor, return_exceptions=True)
        if self._worker is not None:
            await self._worker.stop(leave_seconds if self.ready is not None else 0.0)
            self._worker.close()
            self._worker = None
        await self._standby.close()

    def _send_due(self) -> None:
        """Ask the worker for what it may now be asked for."""
        for request in self._requests.due():
            self._send(request)

    def _send(self, message: ToWorker) -> bool:
        return self._worker is not None and self._worker.send(message)

    async def _supervise(self) -> None:
        failures = 0  # workers in a row that were never ready
        while not self._is_over():
            try:
                was_ready = await self._one_life()
            except Exception as error:
                LOG.exception("The worker cannot be run; the engine is given up.")
                sentence = f"the worker cannot be run: {error}"
                self._set_status(state="failed", sentence=sentence, last_error=repr(error))
                break
            failures = 0 if was_ready else failures + 1
            if failures > self._policy.attempts and not self._is_over():
                self._set_status(state="failed", sentence=f"the worker died {failures} times in a row while loading")
                LOG.error("Gave up on the worker: it died %d times in a row while loading.", failures)
            if not self._is_over():
                await asyncio.sleep(self._policy.delay(failures) if failures else 0.0)
                self._set_status(restarts=self.status.restarts + 1, fraction=0.0)
        self._requests.end_all(WorkerGone(f"No worker is left: {self.status.sentence}.", "worker_died"))

    async def _one_life(self) -> bool:
        """Run one worker process to its end; whether it was ever ready."""
        self._worker = worker = await self._standby.take()
        self._set_status(worker_pid=worker.pid)
        watch = asyncio.create_task(self._watch(worker), name="worker watch")
        try:
            exit_status = await worker.listen(self._on_batch)
            reason = worker.verdict or f"exited with status {exit_status}"
        except msgspec.MsgspecError as error:
            reason = f"sent a frame that cannot be read ({error})"
        finally:
            watch.cancel()
        await worker.stop(0.0)
        return self._bury(worker, reason)

    async def _watch(self, worker: WorkerProcess) -> None:
        """Every second: is the worker heard of, and does its loop go round?"""
        timeout = self._policy.worker_timeout
        while worker.verdict is None:
            await asyncio.sleep(1.0)
            silence = worker.pulse.tick()
            if silence > (timeout if self.ready is not None else PATIENCE * timeout):
                worker.kill(f"was killed: nothing was heard of it for {silence} s")
            elif worker.pulse.busy_seconds > PATIENCE * timeout:
                worker.kill(f"was killed: its step took more than {PATIENCE * timeout:g} s")
            elif silence >= SILENT_SECONDS and self.status.state in ("ready", "silent"):
                self._set_status(state="silent", sentence=f"nothing was heard of the worker for {silence} s")
            elif self.ready is not None:
                if self.status.state == "silent":
                    self._set_status(state="ready", sentence=f"serving {self.ready.model}")
                if not self.status.compiling:
                    await self._standby.prepare()

    def _bury(self, worker: WorkerProcess, reason: str) -> bool:
        worker.close()
        ready, self._worker, self.ready = self.ready, None, None
        self._requests.note_death(ready.max_running if ready else 0, reason)
        LOG.error("Worker %d %s; %d requests go on with the next.", worker.pid, reason, self.num_open)
        last_error = self.status.last_error if self.status.state == "failed" else f"worker {worker.pid} {reason}"
        self._set_status(worker_pid=None, last_error=last_error, compiling=())
        if self.status.state not in ("failed", "draining"):
            self._set_status(state="restarting", sentence=f"the worker {reason}")
        return ready is not None

    def _is_over(self) -> bool:
        """No further worker will be started."""
        return self.status.state == "failed" or (self.status.state == "draining" and self.num_open == 0)

    def _on_batch(self, batch: Batch) -> None:
        for message in batch.messages:
            self._dispatch(message)

    def _dispatch(self, message: FromWorker) -> None:
        match message:
            case StepReport():
                self._observer.on_report(message)
            case Beat():
                pass  # the process has taken note of it
            case LoadProgress():
                self._set_status(sentence=message.sentence, fraction=message.fraction)
            case Compiling():
                self._set_status(compiling=tuple(message.methods))
            case Ready():
                self._on_ready(message)
            case Broke():
                self._on_broke(message)
            case LoadFailed():
                LOG.error("The worker cannot serve this model: %s", message.error)
                self._set_status(state="failed", sentence=message.error, last_error=message.error)
            case _ if isinstance(message, SessionNews | SessionAnswer):
                self.sessions.on_news(message)
            case _:
                self._requests.on_event(message)
                self._send_due()

    def _on_ready(self, ready: Ready) -> None:
        LOG.info("Worker %s serves %s.", self.status.worker_pid, ready.model)
        if ready.context_note is not None:
            LOG.warning("Worker %s: %s", self.status.worker_pid, ready.context_note)
        if self._fingerprint not in (None, ready.fingerprint):
            reason = "The worker died, and what replaced it computes in another way"
            self._requests.end_started(WorkerGone(f"{reason}: the reply cannot go on.", "worker_died"))
        self.ready, self._fingerprint = ready, ready.fingerprint
        self._observer.on_resumed(self.num_open)
        self.sessions.on_ready(ready)
        self._send_due()
        if self.status.state != "draining":
            self._set_status(state="ready", sentence=f"serving {ready.model}", fraction=1.0)

    def _on_broke(self, broke: Broke) -> None:
        """Nothing more is to come of the worker, and to wait for it to leave would be to wait for nothing."""
        if self._worker is not None:
            self._worker.kill(f"gave up: {broke.error}")
        if self.status.state not in ("failed", "draining"):
            self._set_status(state="restarting", sentence=broke.error)

    def _set_status(self, **changes: object) -> None:
        self.status = replace(self.status, **changes)  # type: ignore[arg-type]
        for listener in self._listeners:
            listener(self.status)
