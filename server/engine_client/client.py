"""The asyncio side of the worker: submit and abort requests, route what comes back, restart what died.

Owns every running request's ticket and the engine's status; knows nothing of HTTP or text. The invariant: every
submitted request gets exactly one end, whatever becomes of the worker.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import msgspec

from decoding.config import EngineConfig
from decoding.worker.messages import (
    Abort,
    Batch,
    Broke,
    Failed,
    Finished,
    FromWorker,
    LoadFailed,
    LoadProgress,
    PromptLogprobs,
    Ready,
    Rejected,
    SessionDeleted,
    Sessions,
    StepReport,
    Submit,
    Tokens,
    ToWorker,
    Traced,
)
from server.engine_client.replies import End, Replies, WorkerGone
from server.engine_client.sessions import SessionDesk
from server.engine_client.status import EngineStatus, OnStatus
from server.engine_client.worker_process import WORKER_COMMAND, WorkerProcess
from server.http.errors import ApiError, unavailable

LOG = logging.getLogger("gander.client")
LEAVE_SECONDS = 5.0  # for the worker, once nothing runs any more


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartPolicy:
    """attempts: at loading, after which the engine is given up; a worker that became ready clears the count. Delays
    double from first to longest."""

    attempts: int = 5
    first_delay: float = 0.25
    longest_delay: float = 30.0

    def delay(self, failures: int) -> float:
        return min(self.first_delay * 2.0 ** (failures - 1), self.longest_delay)


@dataclass(slots=True)
class Ticket:
    """One running request. Times are `time.perf_counter` seconds; 0 where it has not happened."""

    replies: Replies
    choice: int
    submitted: float
    first_token: float = 0.0
    last_token: float = 0.0
    num_tokens: int = 0


class Observer(Protocol):
    """Told what happens, for metrics."""

    def on_report(self, report: StepReport) -> None: ...

    def on_end(self, ticket: Ticket, end: End) -> None: ...


class EngineClient:
    """`start`, then `submit`; `close` at last. patience: see Replies."""

    def __init__(
        self,
        config: EngineConfig,
        observer: Observer,
        command: Sequence[str] = WORKER_COMMAND,
        policy: RestartPolicy | None = None,
        patience: float = 15.0,
    ) -> None:
        self._config = config
        self._observer = observer
        self._command = command
        self._policy = policy or RestartPolicy()
        self._patience = patience
        self._worker: WorkerProcess | None = None
        self._tickets: dict[str, Ticket] = {}
        self._is_idle = asyncio.Event()
        self._is_idle.set()
        self._supervisor: asyncio.Task[None] | None = None
        self.status = EngineStatus()
        self.ready: Ready | None = None
        self._listeners: list[OnStatus] = []
        self.desk = SessionDesk(self._send)

    @property
    def max_open(self) -> int:
        """The most requests without an end, the engine's own rule. Only while the engine is ready."""
        assert self.ready is not None
        return self.ready.max_running + self._config.max_waiting

    @property
    def num_open(self) -> int:
        """Requests without an end."""
        return len(self._tickets)

    def subscribe(self, listener: OnStatus) -> None:
        """Call `listener` with every change of status from now on."""
        self._listeners.append(listener)

    def start(self) -> None:
        self._supervisor = asyncio.create_task(self._supervise(), name="worker supervisor")

    def submit(self, requests: Sequence[Submit]) -> Replies:
        """Run the requests; raises ApiError if the engine cannot take all of them now."""
        status, worker = self.status, self._worker
        if status.state != "ready" or worker is None:
            raise unavailable(f"The engine is not ready: {status.sentence}.", f"engine_{status.state}", 2)
        # A ticket ends after the engine's part is over, so what passes here passes there.
        if self.num_open + len(requests) > self.max_open:
            raise ApiError(429, "Too many requests are waiting; try again later.", None, "queue_full", 1)
        replies = Replies([request.request_id for request in requests], self.abort, self._patience)
        now = time.perf_counter()
        for choice, request in enumerate(requests):
            assert request.request_id not in self._tickets, request.request_id
            self._tickets[request.request_id] = Ticket(replies, choice, now)
            self._is_idle.clear()
            if not worker.send(request):
                self._end(request.request_id, _worker_gone("could not be reached"))
        return replies

    def abort(self, request_ids: Sequence[str]) -> None:
        """Free what these requests hold by the next step; ids that have ended are ignored."""
        for request_id in request_ids:
            if request_id in self._tickets and self._worker is not None:
                self._worker.send(Abort(request_id=request_id))

    def begin_drain(self, seconds: float) -> None:
        """Take no more requests; running ones have `seconds` to end, then they fail."""
        if self.status.state not in ("failed", "draining"):
            self._set_status(state="draining", sentence="finishing what runs before stopping")
            asyncio.get_running_loop().call_later(seconds, self._cut_off)

    async def close(self, seconds: float) -> None:
        """Drain, then see the worker off. Safe to call twice."""
        self.begin_drain(seconds)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._is_idle.wait()
        self._cut_off()
        if self._supervisor is not None:
            self._supervisor.cancel()
            await asyncio.gather(self._supervisor, return_exceptions=True)
        if self._worker is not None:
            await self._worker.stop(LEAVE_SECONDS if self.ready is not None else 0.0)
            self._worker.close()
            self._worker = None

    def _send(self, message: ToWorker) -> bool:
        return self._worker is not None and self._worker.send(message)

    def _cut_off(self) -> None:
        if self.num_open:
            LOG.warning("%d requests were cut off by the stop.", self.num_open)
            self.abort(list(self._tickets))
            self._fail_all(WorkerGone("The server is stopping.", "server_stopping"))

    async def _supervise(self) -> None:
        failures = 0
        while not self._is_over():
            try:
                was_ready = await self._one_life()
            except Exception as error:
                LOG.exception("The worker cannot be run; the engine is given up.")
                self._set_status(state="failed", sentence="the worker cannot be run", last_error=repr(error))
                self._fail_all(_worker_gone("cannot be run"))
                return
            failures = 1 if was_ready else failures + 1
            if failures > self._policy.attempts and not self._is_over():
                self._set_status(state="failed", sentence=f"the worker died {failures} times in a row while loading")
                LOG.error("Gave up on the worker: it died %d times in a row while loading.", failures)
            if not self._is_over():
                await asyncio.sleep(self._policy.delay(failures))
                self._set_status(restarts=self.status.restarts + 1, fraction=0.0)

    async def _one_life(self) -> bool:
        """Run one worker process to its end; whether it became ready."""
        self._worker = worker = await WorkerProcess.start(self._command, self._config)
        self._set_status(worker_pid=worker.pid)
        try:
            exit_status = await worker.listen(self._on_batch)
            reason = f"exited with status {exit_status}"
        except msgspec.MsgspecError as error:
            reason = f"sent a frame that cannot be read ({error})"
        await worker.stop(0.0)
        was_ready = self.ready is not None
        self._bury(worker, reason)
        return was_ready

    def _on_batch(self, batch: Batch) -> None:
        for message in batch.messages:
            self._dispatch(message)

    def _bury(self, worker: WorkerProcess, reason: str) -> None:
        worker.close()
        self._worker = self.ready = None
        LOG.error("Worker %d %s; %d requests failed.", worker.pid, reason, self.num_open)
        last_error = self.status.last_error if self.status.state == "failed" else f"worker {worker.pid} {reason}"
        self._set_status(worker_pid=None, last_error=last_error)
        if not self._is_over():
            self._set_status(state="restarting", sentence=f"the worker {reason}")
        self._fail_all(_worker_gone(reason))

    def _is_over(self) -> bool:
        """No further worker will be started."""
        return self.status.state in ("failed", "draining")

    def _dispatch(self, message: FromWorker) -> None:
        match message:
            case Tokens():
                self._on_tokens(message)
            case Sessions() | SessionDeleted():
                self.desk.on_answer(message)
            case PromptLogprobs() | Traced():
                ticket = self._tickets.get(message.request_id)
                if ticket is not None:
                    ticket.replies.put_news(ticket.choice, message)
            case StepReport():
                self._observer.on_report(message)
            case Finished() | Rejected() | Failed():
                self._end(message.request_id, message)
            case LoadProgress():
                self._set_status(sentence=message.sentence, fraction=message.fraction)
            case Ready():
                self.ready = message
                LOG.info("Worker %s serves %s.", self.status.worker_pid, message.model)
                if message.context_note is not None:
                    LOG.warning("Worker %s: %s", self.status.worker_pid, message.context_note)
                if self.status.state != "draining":
                    self._set_status(state="ready", sentence=f"serving {message.model}", fraction=1.0)
            case Broke():
                if not self._is_over():
                    self._set_status(state="restarting", sentence=message.error, last_error=message.error)
            case LoadFailed():
                LOG.error("The worker cannot serve this model: %s", message.error)
                self._set_status(state="failed", sentence=message.error, last_error=message.error)

    def _on_tokens(self, tokens: Tokens) -> None:
        ticket = self._tickets.get(tokens.request_id)
        if ticket is None:
            return
        ticket.last_token = time.perf_counter()
        ticket.first_token = ticket.first_token or ticket.last_token
        ticket.num_tokens += len(tokens.token_ids)
        ticket.replies.put_tokens(ticket.choice, tokens)

    def _end(self, request_id: str, end: End) -> None:
        ticket = self._tickets.pop(request_id, None)
        if ticket is None:
            return
        ticket.replies.put_end(ticket.choice, end)
        self._observer.on_end(ticket, end)
        if not self._tickets:
            self._is_idle.set()

    def _fail_all(self, end: WorkerGone) -> None:
        for request_id in list(self._tickets):
            self._end(request_id, end)

    def _set_status(self, **changes: object) -> None:
        self.status = replace(self.status, **changes)  # type: ignore[arg-type]
        for listener in self._listeners:
            listener(self.status)


def _worker_gone(reason: str) -> WorkerGone:
    return WorkerGone(f"The worker process {reason}; it is being restarted.", "worker_died")
