"""The requests that one worker runs or is to run, and what becomes of them when its process dies.

Knows nothing of sockets or of other workers. Invariant: a request that ran when a process died, and again when another
did, is tried alone at the worker of the second. If a third process dies of it, it ends, and no other request does.
"""

from __future__ import annotations

from collections.abc import Container, Iterator

import msgspec

from decoding.worker.calls import Submit
from server.engine_client.open_requests import Ticket
from server.engine_client.replies import End, WorkerGone

MOST_DEATHS = 2  # of processes that ran a request, after which it is tried alone, since it may be what kills them
TRIAL_TOKENS = 16  # that a request has to give alone, beyond those it had given, until others run beside it again


class WorkerRequests:
    """In the order in which they came to the worker of this number."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._tickets: dict[str, Ticket] = {}
        self._held: dict[str, Ticket] = {}  # those of them that the present process was not yet sent
        self._on_trial: Ticket | None = None
        self._trial_end = 0  # its number of tokens

    def __len__(self) -> int:
        return len(self._tickets)

    def __iter__(self) -> Iterator[Ticket]:
        return iter(list(self._tickets.values()))

    @property
    def has_trial(self) -> bool:
        """Whether a request is tried alone while all others wait."""
        return self._on_trial is not None

    def has_session(self, tenant: str, session_id: str) -> bool:
        """Whether there is a request of this session."""
        requests = (ticket.request for ticket in self._tickets.values())
        return any((request.tenant, request.session_id) == (tenant, session_id) for request in requests)

    def add(self, ticket: Ticket) -> None:
        ticket.worker = self._number
        request_id = ticket.request.request_id
        self._tickets[request_id] = self._held[request_id] = ticket

    def drop(self, ticket: Ticket) -> None:
        """Forget a request that has ended or goes to another worker."""
        del self._tickets[ticket.request.request_id]
        self._held.pop(ticket.request.request_id, None)
        if ticket is self._on_trial:
            self._on_trial = None

    def is_held(self, ticket: Ticket) -> bool:
        """Whether the present process was not yet sent this request."""
        return ticket.request.request_id in self._held

    def due(self) -> list[Submit]:
        """The requests that a worker that is ready is to be sent now, to go on after the tokens that were given.

        These are all that are held, or one alone that two processes died of. Once its trial went well, it takes one
        more death until it is tried again.
        """
        trial = self._on_trial
        if trial is not None and trial.num_tokens >= self._trial_end:
            trial.num_deaths, self._on_trial = MOST_DEATHS - 1, None
        if not self._held or self._on_trial is not None:
            return []
        suspect = next((ticket for ticket in self._held.values() if ticket.num_deaths >= MOST_DEATHS), None)
        if suspect is None:
            tickets, self._held = list(self._held.values()), {}
        else:
            del self._held[suspect.request.request_id]
            tickets, self._on_trial, self._trial_end = [suspect], suspect, suspect.num_tokens + TRIAL_TOKENS
        return [msgspec.structs.replace(ticket.request, resumed=list(ticket.token_ids)) for ticket in tickets]

    def release(self, with_suspects: bool) -> list[Ticket]:
        """Give up the held requests, for another worker to run. Those that two processes died of stay, unless
        with_suspects."""
        released = [ticket for ticket in self._held.values() if with_suspects or ticket.num_deaths < MOST_DEATHS]
        for ticket in released:
            self.drop(ticket)
        return released

    def note_death(self, running: Container[str], reason: str) -> list[tuple[Ticket, End]]:
        """Note that the process died while it was at the requests of these ids, and hold all that go on.

        Returns those that end: the aborted ones, and the one that the process died of. That is the one on trial, or one
        that ran with no other when a second process died.
        """
        ran = [ticket for request_id, ticket in self._tickets.items() if request_id in running]
        for ticket in ran:
            ticket.num_deaths += 1
        suspects = ran if self._on_trial is None else [ticket for ticket in ran if ticket is self._on_trial]
        guilty = suspects[0] if len(suspects) == 1 and suspects[0].num_deaths >= MOST_DEATHS else None
        self._held, self._on_trial = dict(self._tickets), None
        ends: list[tuple[Ticket, End]] = []
        for ticket in self._tickets.values():
            ticket.note_death()
            if ticket.is_aborted:
                ends.append((ticket, ticket.aborted()))
            elif ticket is guilty:
                count = "Two" if ticket.num_deaths == MOST_DEATHS else "Three"
                message = f"{count} worker processes died while they ran this request; the last one {reason}."
                ends.append((ticket, WorkerGone(message, "worker_died")))
        return ends
