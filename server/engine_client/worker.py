"""One worker as the client has it, whichever process runs it: its requests go to the present one, and what that says is
handed on.

Owns what the worker was given and its status; knows nothing of how processes are started and watched, of HTTP, text or
other workers. Invariant: every request that it was given ends or is kept for the next process, whatever becomes of the
present one.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import replace
from typing import Protocol

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
from server.engine_client.processes.worker_process import WorkerProcess
from server.engine_client.replies import End, WorkerGone
from server.engine_client.sessions.kept_sessions import MOST_BYTES
from server.engine_client.sessions.session_folder import SessionFolder
from server.engine_client.sessions.session_keeper import SessionKeeper
from server.engine_client.status import EngineStatus, OnStatus
from server.engine_client.worker_requests import WorkerRequests

LOG = logging.getLogger("gander.client")
SILENT_SECONDS = 5  # after which a worker is not taken to be ready


class Observer(Protocol):
    """Told what happens, for metrics. worker is the worker's number."""

    def on_report(self, worker: int, report: StepReport) -> None: ...

    def on_death(self, worker: int) -> None: ...

    def on_end(self, ticket: Ticket, end: End) -> None: ...

    def on_resumed(self, num_requests: int) -> None: ...


class Worker:
    """config is this worker's. requests has all that are open, whichever worker has them. ready is what the present
    process said, if it has."""

    def __init__(
        self, config: EngineConfig, requests: OpenRequests, observer: Observer, folder: SessionFolder | None
    ) -> None:
        self.number = config.place
        self.status = EngineStatus()
        self.process: WorkerProcess | None = None
        self.ready: Ready | None = None
        self.fingerprint: str | None = None  # of the last process that was ready
        self._announced: Ready | None = None  # by the first process that was ready
        self.requests = WorkerRequests(self.number)
        self.sessions = SessionKeeper(self._send, folder, lambda: not self.requests, MOST_BYTES // config.workers)
        self._config = config
        self._open = requests
        self._observer = observer
        self._listeners: list[OnStatus] = []
        self._serving = ""  # a sentence of what the process that is ready serves

    @property
    def is_serving(self) -> bool:
        return self.status.state == "ready" and self.ready is not None

    @property
    def can_run(self) -> bool:
        """Whether it can run requests now, be it that a drain lets no new ones in."""
        return self.status.state in ("ready", "draining") and self.ready is not None

    @property
    def is_over(self) -> bool:
        """Whether no further process is to be started."""
        return self.status.state == "failed" or (self.status.state == "draining" and not self.requests)

    @property
    def config(self) -> EngineConfig:
        """The next process's configuration, with the room and the kernels that the first one announced."""
        if (announced := self._announced) is None:
            return self._config
        slots, running, is_exact = announced.kv_slots, announced.max_running, announced.is_row_exact
        return replace(self._config, kept_slots=slots, max_running=running, exact=is_exact)

    def subscribe(self, listener: OnStatus) -> None:
        """Call `listener` with every change of status from now on."""
        self._listeners.append(listener)

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
            self.set_status(state="draining", sentence="finishing what runs before stopping")

    def attach(self, process: WorkerProcess | None) -> None:
        """Run requests in this process from when it is ready, or in none."""
        self.process = process
        if process is not None:
            self.set_status(worker_pid=process.pid)

    def bury(self, process: WorkerProcess, reason: str) -> bool:
        """Note that the process is gone, and what it may have died of. Returns whether it was ever ready."""
        running = process.running()
        process.close()
        ready, self.process, self.ready = self.ready, None, None
        self.sessions.on_death()
        self._observer.on_death(self.number)
        for ticket, end in self.requests.note_death(running, reason):
            self._open.end(ticket.request.request_id, end)
        LOG.error("Worker %d %s; %d requests go on with the next.", process.pid, reason, len(self.requests))
        last_error = self.status.last_error if self.status.state == "failed" else f"worker {process.pid} {reason}"
        self.set_status(worker_pid=None, last_error=last_error, compiling=())
        self.set_restarting(f"the worker {reason}")
        return ready is not None

    def rest(self) -> None:
        """Note that the process was stopped, so that the next one starts as the first one did. What is kept of sessions
        stays."""
        assert not self.requests, self.number
        self.process = self.ready = self.fingerprint = self._announced = None
        self.sessions.on_death()
        self._observer.on_death(self.number)
        self.status = EngineStatus()

    def note_silence(self, seconds: int) -> None:
        """Note that nothing has been heard of the process for so long."""
        if seconds >= SILENT_SECONDS and self.status.state in ("ready", "silent"):
            self.set_status(state="silent", sentence=f"nothing was heard of the worker for {seconds} s")
        elif self.status.state == "silent":
            self.set_status(state="ready", sentence=self._serving)

    def hear(self, batch: Batch) -> None:
        """Hand on what the process says."""
        for message in batch.messages:
            self._dispatch(message)

    def set_restarting(self, sentence: str) -> None:
        """Say that a process is to be replaced, unless none will be."""
        if self.status.state not in ("failed", "draining"):
            self.set_status(state="restarting", sentence=sentence)

    def set_status(self, **changes: object) -> None:
        """Change these fields of the status, and tell all who listen."""
        self.status = replace(self.status, **changes)  # type: ignore[arg-type]
        for listener in self._listeners:
            listener(self.status)

    def _send_due(self) -> None:
        """Send the process the requests that it may run now."""
        if self.ready is not None:
            for call in calls_of(self.requests.due()):
                self._send(call)

    def _send(self, message: ToWorker) -> bool:
        """Returns False where there is no process."""
        if self.process is None:
            return False
        self.process.send(message)
        return True

    def _dispatch(self, message: FromWorker) -> None:
        match message:
            case StepReport():
                self._observer.on_report(self.number, message)
            case Beat():
                pass  # `WorkerProcess` has taken note of it
            case LoadProgress():
                self.set_status(sentence=message.sentence, fraction=message.fraction)
            case Compiling():
                self.set_status(compiling=tuple(message.methods))
            case Ready():
                self._on_ready(message)
            case Broke():
                self._on_broke(message)
            case LoadFailed():
                self.set_status(state="failed", sentence=message.error, last_error=message.error)
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
            self.set_status(state="ready", sentence=self._serving, fraction=1.0)

    def _on_broke(self, broke: Broke) -> None:
        """Kill a process that gave up, since nothing more comes of it."""
        if self.process is not None:
            self.process.kill(f"gave up: {broke.error}")
        self.set_restarting(broke.error)
