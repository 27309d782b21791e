"""The engine as the server sees it: requests go in and replies come out, whichever worker runs them.

Owns the open requests, the limits of the queue and the choice of a worker; knows nothing of HTTP, text or processes.
Invariant: every submitted request gets exactly one end. A request outlives its worker: the next one, or another, goes
on with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from decoding.config import EngineConfig
from decoding.worker.calls import Submit
from decoding.worker.messages import Ready
from server.engine_client.all_sessions import AllSessions
from server.engine_client.deadlines import Deadlines
from server.engine_client.open_requests import OpenRequests, Ticket
from server.engine_client.processes.restart_policy import RestartPolicy
from server.engine_client.processes.standby import Standby
from server.engine_client.processes.supervisor import Supervisor
from server.engine_client.queue_gate import QueueGate, QueueLimits
from server.engine_client.replies import End, Replies, WorkerGone
from server.engine_client.request_bytes import call_bytes
from server.engine_client.router import Router
from server.engine_client.sessions.session_folder import SessionFolder
from server.engine_client.sessions.session_keeper import RECALL_SECONDS
from server.engine_client.status import EngineStatus, OnStatus
from server.engine_client.summary import ready_of, status_of
from server.engine_client.worker import Observer, Worker
from server.http.errors import unavailable

LOG = logging.getLogger("gander.client")
LEAVE_SECONDS = 5.0  # that a worker has to leave in, once nothing runs any more


class EngineClient:
    """Call `start`, then `submit`, and `close` at last. `rest` stops the workers until the next `start`. standby is
    what workers are made of, which other clients may share. patience is that of `Replies`."""

    def __init__(
        self,
        config: EngineConfig,
        limits: QueueLimits,
        observer: Observer,
        standby: Standby,
        policy: RestartPolicy | None = None,
        patience: float = 15.0,
        sessions_folder: SessionFolder | None = None,
    ) -> None:
        policy = policy or RestartPolicy()
        self._observer = observer
        self._patience = patience
        self._requests = OpenRequests(self._on_end)
        self._gate = QueueGate(limits, self._requests)
        self._deadlines = Deadlines(self._requests, self._gate, self._end)
        self._router = Router(config.workers)
        self.workers = [
            Worker(replace(config, place=place), self._requests, observer, sessions_folder)
            for place in range(config.workers)
        ]
        self._supervisors = [Supervisor(worker, standby, policy) for worker in self.workers]
        for worker in self.workers:
            worker.subscribe(lambda _: self._on_change())
        self.sessions = AllSessions(self.workers, self._router)
        self.status = EngineStatus()
        self._is_started = False
        self._listeners: list[OnStatus] = []

    @property
    def ready(self) -> Ready | None:
        """What the running workers serve, as of one; None where no worker runs."""
        return ready_of([worker.ready for worker in self.workers if worker.ready is not None])

    @property
    def num_open(self) -> int:
        """How many requests have no end yet."""
        return len(self._requests)

    def num_by_tenant(self) -> Counter[tuple[str, bool]]:
        """How many requests have no end yet, by tenant and by whether they have a first token."""
        return self._requests.num_by_tenant()

    def num_prompt_tokens_left(self) -> int:
        """How many prompt tokens of open requests are still to be run, as far as the workers have told."""
        return self._requests.num_prompt_tokens_left()

    def num_bytes(self) -> int:
        """Bytes that requests without an end hold in their workers."""
        return self._requests.num_bytes(None)

    def take_up(self, limits: QueueLimits, patience: float) -> None:
        """Hold requests to other limits, and streams to another patience, from the next call on."""
        self._gate.limits, self._patience = limits, patience

    @property
    def limits(self) -> QueueLimits:
        return self._gate.limits

    def subscribe(self, listener: OnStatus) -> None:
        """Call `listener` with every change of status from now on."""
        self._listeners.append(listener)

    def start(self) -> None:
        """Start the first worker. The others start once it serves and has compiled everything, since they read what it
        has measured."""
        self._is_started = True
        self._supervisors[0].start()

    async def rest(self) -> None:
        """Stop the workers, which have no requests. `start` starts them again."""
        assert not self._requests, len(self._requests)
        self._is_started = False
        await asyncio.gather(*(supervisor.close(LEAVE_SECONDS) for supervisor in self._supervisors))
        for worker in self.workers:
            worker.rest()
            self._router.forget(worker.number)
        self.status = EngineStatus()

    async def submit(self, requests: Sequence[Submit], timeout: float | None = None) -> Replies:
        """Run the requests of one call, all at one worker. timeout is in seconds, for the whole call.

        Raises ApiError if the engine cannot take all of them now.
        """
        worker, first = self._pick(requests), requests[0]
        started = asyncio.get_running_loop().time()
        seconds = RECALL_SECONDS if timeout is None else min(timeout, RECALL_SECONDS)
        await worker.sessions.recall(first.tenant, first.session_id, seconds)
        if not worker.is_serving:  # any more
            worker = self._pick(requests)
        ready = self.ready
        assert ready is not None
        # A request is open here for longer than at the engine, so what passes these limits passes the engine's.
        num_bytes = call_bytes(requests, ready.vocab_size)
        self._gate.check(requests, num_bytes, ready.max_running)
        replies = Replies([request.request_id for request in requests], self.abort, self._patience)
        self._deadlines.set(replies, requests, timeout, started)
        share = num_bytes // len(requests)
        tickets = [Ticket(request, replies, choice, share) for choice, request in enumerate(requests)]
        for ticket in tickets:
            self._requests.add(ticket)
        worker.give(tickets)
        return replies

    def abort(self, request_ids: Sequence[str]) -> None:
        """End these requests, and free what they hold by the next step. Ids that have ended are ignored."""
        for request_id in request_ids:
            ticket = self._requests.find(request_id)
            if ticket is None:
                continue
            if self.workers[ticket.worker].stop(ticket):
                ticket.is_aborted = True  # if the worker dies before it has ended it, no other need go on with it
            else:
                self._requests.end(request_id, ticket.aborted())

    def begin_drain(self, seconds: float) -> None:
        """Take no more requests. Those that run have `seconds` to end, then they fail."""
        if self.status.state not in ("failed", "draining"):
            for worker in self.workers:
                worker.begin_drain()
            asyncio.get_running_loop().call_later(seconds, self.cut_off)

    def cut_off(self) -> None:
        """Fail the requests that still run."""
        if self.num_open:
            LOG.warning("%d requests were cut off by the stop.", self.num_open)
            self._end(self._requests.ids(), WorkerGone("The server is stopping.", "server_stopping"))

    async def close(self, seconds: float, leave_seconds: float = LEAVE_SECONDS) -> None:
        """Drain, then stop the workers, which have `leave_seconds` to leave by themselves. Safe to call twice."""
        self.begin_drain(seconds)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._requests.wait_until_empty()
        self.cut_off()
        self._is_started = False
        await asyncio.gather(*(supervisor.close(leave_seconds) for supervisor in self._supervisors))

    def _pick(self, requests: Sequence[Submit]) -> Worker:
        """Choose the worker that runs a call. Raises ApiError where none can."""
        serving = [worker for worker in self.workers if worker.is_serving]
        if self.status.state != "ready" or not serving:
            raise unavailable(f"The engine is not ready: {self.status.sentence}.", f"engine_{self.status.state}", 2)
        return self._route(requests[0], len(requests), serving)

    def _route(self, request: Submit, num_requests: int, able: Sequence[Worker]) -> Worker:
        """Choose one of these workers for so many requests like this one. Where that moves their session, the new
        worker is given what is remembered of it."""
        if len(self.workers) == 1:
            return able[0]
        name = request.tenant, request.session_id
        home = self._router.home(*name)
        free = [worker for worker in able if not worker.requests.has_trial] or able
        loads = {worker.number: len(worker.requests) for worker in free}
        worker = self.workers[self._router.pick(request, num_requests, loads)]
        if home is not None and home != worker.number:
            state = self.workers[home].sessions.kept(*name)
            if state is not None:
                worker.sessions.adopt(state, replaces=not worker.requests.has_session(*name))
        return worker

    def _end(self, request_ids: Sequence[str], end: End) -> None:
        """End requests, whatever their workers are doing."""
        for request_id in request_ids:
            ticket = self._requests.find(request_id)
            if ticket is not None:
                self.workers[ticket.worker].stop(ticket)
                self._requests.end(request_id, end)

    def _on_end(self, ticket: Ticket, end: End) -> None:
        self.workers[ticket.worker].requests.drop(ticket)
        self._gate.note_end(ticket)
        self._observer.on_end(ticket, end)

    def _on_change(self) -> None:
        """Some worker's status has changed."""
        first = self.workers[0]
        if self._is_started and first.is_serving and not first.status.compiling:
            for supervisor in self._supervisors:
                supervisor.start()
        have_all_served = all(worker.fingerprint is not None for worker in self.workers)
        self.status = status_of([worker.status for worker in self.workers], have_all_served)
        if self.status.state == "failed":
            self._end(self._requests.ids(), WorkerGone(f"No worker is left: {self.status.sentence}.", "worker_died"))
        for worker in self.workers:
            if not worker.can_run:
                self._relieve(worker)
        for listener in self._listeners:
            listener(self.status)

    def _relieve(self, lost: Worker) -> None:
        """Give a lost worker's requests to others, if any compute as it did."""
        if lost.ready is None:
            self._router.forget(lost.number)
        able = [worker for worker in self.workers if worker.can_run and worker.fingerprint == lost.fingerprint]
        if able:
            released = lost.requests.release(with_suspects=lost.status.state == "failed")
            for ticket in released:
                self._route(ticket.request, 1, able).give([ticket])
            self._observer.on_resumed(len(released))
