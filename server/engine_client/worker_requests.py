"""The requests that one worker runs or is to run, and what becomes of them when it dies.

Knows nothing of messages' ways or of other workers. The invariant: a request that two workers died of is tried alone,
where the second did: if a third dies of it, it ends, and no other does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import msgspec

from decoding.worker.messages import Submit
from server.engine_client.open_requests import Ticket
from server.engine_client.replies import End, WorkerGone

MOST_DEATHS = 2  # of workers that ran a request beside others, until it is tried alone: it may be what kills them
TRIAL_TOKENS = 16  # that a request gives alone, beyond those it had given, until others run beside it again


class WorkerRequests:
    """In the order in which they came to the worker, whose number is `number`."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._tickets: dict[str, Ticket] = {}
        self._held: dict[str, Ticket] = {}  # of them those that the present process was not yet asked for
        self._on_trial: Ticket | None = None
        self._trial_end = 0  # its number of tokens

    def __len__(self) -> int:
        return len(self._tickets)

    def __iter__(self) -> Iterator[Ticket]:
        return iter(list(self._tickets.values()))

    @property
    def has_trial(self) -> bool:
        """Whether one runs alone, and all others wait."""
        return self._on_trial is not None

    def add(self, ticket: Ticket) -> None:
        ticket.worker = self._number
        request_id = ticket.request.request_id
        self._tickets[request_id] = self._held[request_id] = ticket

    def drop(self, ticket: Ticket) -> None:
        """It has ended, or goes to another worker."""
        del self._tickets[ticket.request.request_id]
        self._held.pop(ticket.request.request_id, None)
        if ticket is self._on_trial:
            self._on_trial = None

    def is_held(self, ticket: Ticket) -> bool:
        """Whether no process runs it at present."""
        return ticket.request.request_id in self._held

    def due(self) -> list[Submit]:
        """What a worker that is ready is to be asked for now, to go on after the tokens that were given: all that is
        held, or of requests that two workers died of one, alone. Once that went well, one more death is needed to try
        it again."""
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
        """Give up what is held, for another worker to run; with_suspects: also what may be what kills workers."""
        released = [ticket for ticket in self._held.values() if with_suspects or ticket.num_deaths < MOST_DEATHS]
        for ticket in released:
            self.drop(ticket)
        return released

    def note_death(self, max_running: int, reason: str) -> list[tuple[Ticket, End]]:
        """The process died, which ran at most so many: those that it gave tokens, and those whose turn it was.

        Returns those that end of it: the request that was tried alone, or ran alone for the second time, and those
        that were being given up. All others are held.
        """
        may_have_run = set(self._in_turn()[:max_running])
        asked = [(request_id, each) for request_id, each in self._tickets.items() if request_id not in self._held]
        ran = [ticket for request_id, ticket in asked if ticket.is_running or request_id in may_have_run]
        for ticket in ran:
            ticket.num_deaths += 1
        guilty = self._on_trial or (ran[0] if len(ran) == 1 and ran[0].num_deaths >= MOST_DEATHS else None)
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

    def _in_turn(self) -> list[str]:
        """What the worker was asked for, in the order of its fair queue: of each key as many, and of each call."""
        num_of_call: Counter[tuple[str, str]] = Counter()
        num_of_key: Counter[str] = Counter()
        turns: list[tuple[tuple[float, ...], str]] = []
        for request_id, ticket in self._tickets.items():
            if request_id in self._held:
                continue
            call = (ticket.request.tenant, ticket.request.call_id)
            turns.append(((ticket.request.priority, num_of_call[call], len(turns)), request_id))
            num_of_call[call] += 1
        ranks = {}
        for (priority, in_call, place), request_id in sorted(turns):
            request = self._tickets[request_id].request
            ranks[request_id] = priority, num_of_key[request.tenant] / request.weight, in_call, place
            num_of_key[request.tenant] += 1
        return sorted(ranks, key=ranks.__getitem__)
