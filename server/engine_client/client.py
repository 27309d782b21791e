"""The asyncio side of the engine: requests in, replies out, whichever of its workers runs them.

Owns what is open, who may come in, and which worker runs what; knows nothing of HTTP, text or processes. The invariant:
every submitted request gets exactly one end. A request outlives its worker: the next one, or another, goes on with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from decoding.config import EngineConfig
from decoding.worker.messages import Ready, Submit
from server.engine_client.all_sessions import AllSessions
from server.engine_client.deadlines import Deadlines
from server.engine_client.open_requests import OpenRequests, Ticket
from server.engine_client.queue_gate import QueueGate, QueueLimits
from server.engine_client.replies import End, Replies, WorkerGone
from server.engine_client.router import Router
from server.engine_client.sessions.session_folder import SessionFolder
from server.engine_client.standby import Standby
from server.engine_client.status import EngineStatus, OnStatus
from server.engine_client.summary import ready_of, status_of
from server.engine_client.supervisor import Observer, RestartPolicy, Supervisor
from server.engine_client.worker_process import WORKER_COMMAND
from server.http.errors import unavailable

LOG = logging.getLogger("gander.client")
LEAVE_SECONDS = 5.0  # for a worker, once nothing runs any more


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
        policy = policy or RestartPolicy()
        self._observer = observer
        self._patience = patience
        self._requests = OpenRequests(self._on_end)
        self._gate = QueueGate(limits, self._requests)
        self._deadlines = Deadlines(self._requests, self._gate, self._end)
        self._standby = Standby(command, is_wanted=policy.has_standby)
        self._router = Router(config.workers)
        self.workers = [
            Supervisor(replace(config, place=place), self._standby, policy, self._requests, observer, sessions_folder)
            for place in range(config.workers)
        ]
        for worker in self.workers:
            worker.subscribe(lambda _: self._on_change())
        self.sessions = AllSessions(self.workers, self._router)
        self.status = EngineStatus()
        self._listeners: list[OnStatus] = []

    @property
    def ready(self) -> Ready | None:
        """What the workers are that run; None without one."""
        return ready_of([worker.ready for worker in self.workers if worker.ready is not None])

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
        """The first worker; the others once it serves and nothing is left to be compiled, with what it has measured."""
        self.workers[0].start()

    async def submit(self, requests: Sequence[Submit], timeout: float | None = None) -> Replies:
        """Run one call's requests, all at one worker; raises ApiError if the engine cannot take all of them now.
        timeout: seconds for all of the call."""
        worker, first = self._pick(requests), requests[0]
        await worker.sessions.recall(first.tenant, first.session_id)
        if not worker.is_serving:  # any more
            worker = self._pick(requests)
        ready = self.ready
        assert ready is not None
        # A ticket ends after the engine's part is over, so what passes here passes there.
        self._gate.check(requests, ready.max_running)
        replies = Replies([request.request_id for request in requests], self.abort, self._patience)
        self._deadlines.set(replies, requests, timeout)
        tickets = [Ticket(request, replies, choice) for choice, request in enumerate(requests)]
        for ticket in tickets:
            self._requests.add(ticket)
        worker.give(tickets)
        return replies

    def abort(self, request_ids: Sequence[str]) -> None:
        """Free what these requests hold by the next step; ids that have ended are ignored."""
        for request_id in request_ids:
            ticket = self._requests.find(request_id)
            if ticket is None:
                continue
            if self.workers[ticket.worker].stop(ticket):
                ticket.is_aborted = True  # should the worker die before it has, nobody wants the rest
            else:
                self._requests.end(request_id, ticket.aborted())

    def begin_drain(self, seconds: float) -> None:
        """Take no more requests; running ones have `seconds` to end, then they fail."""
        if self.status.state not in ("failed", "draining"):
            for worker in self.workers:
                worker.begin_drain()
            asyncio.get_running_loop().call_later(seconds, self.cut_off)

    def cut_off(self) -> None:
        """Wait no longer for what runs."""
        if self.num_open:
            LOG.warning("%d requests were cut off by the stop.", self.num_open)
            self._end(self._requests.ids(), WorkerGone("The server is stopping.", "server_stopping"))

    async def close(self, seconds: float, leave_seconds: float = LEAVE_SECONDS) -> None:
        """Drain, then see the workers off, which have `leave_seconds` to go by themselves. Safe to call twice."""
        self.begin_drain(seconds)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._requests.wait_until_empty()
        self.cut_off()
        await asyncio.gather(*(worker.close(leave_seconds) for worker in self.workers))
        await self._standby.close()

    def _pick(self, requests: Sequence[Submit]) -> Supervisor:
        """The worker that is to run a call. Raises ApiError where none can."""
        serving = [worker for worker in self.workers if worker.is_serving]
        if self.status.state != "ready" or not serving:
            raise unavailable(f"The engine is not ready: {self.status.sentence}.", f"engine_{self.status.state}", 2)
        return self._route(requests[0], len(requests), serving)

    def _route(self, request: Submit, num_requests: int, able: Sequence[Supervisor]) -> Supervisor:
        """Which of these workers is to run so many requests like this one. A session that goes to another worker takes
        along what is known of it here."""
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
                worker.sessions.adopt(state)
        return worker

    def _end(self, request_ids: Sequence[str], end: End) -> None:
        """Whatever their workers are at."""
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
        """Some worker's status is another one."""
        first = self.workers[0]
        if first.is_serving and not first.status.compiling:
            for worker in self.workers:
                worker.start()
        have_all_served = all(worker.fingerprint is not None for worker in self.workers)
        self.status = status_of([worker.status for worker in self.workers], have_all_served)
        if self.status.state == "failed":
            self._end(self._requests.ids(), WorkerGone(f"No worker is left: {self.status.sentence}.", "worker_died"))
        for worker in self.workers:
            if not worker.can_run:
                self._relieve(worker)
        for listener in self._listeners:
            listener(self.status)

    def _relieve(self, lost: Supervisor) -> None:
        """Have others go on with what a worker had, as far as they compute alike."""
        if lost.ready is None:
            self._router.forget(lost.number)
        able = [worker for worker in self.workers if worker.can_run and worker.fingerprint == lost.fingerprint]
        if able:
            released = lost.requests.release(with_suspects=lost.status.state == "failed")
            for ticket in released:
                self._route(ticket.request, 1, able).give([ticket])
            self._observer.on_resumed(len(released))
