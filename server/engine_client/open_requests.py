"""The requests without an end: what each was given so far, and what becomes of them when a worker dies.

Knows messages, nothing of processes. The invariant: every request gets exactly one end, and its reader sees each token
of its reply once, however many workers gave them. A request that two workers died of is tried alone: if a third dies
of it, it ends, and no other does.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import msgspec

from decoding.core.stats import RequestStats
from decoding.worker.messages import Failed, Finished, PromptLogprobs, Rejected, RequestEvent, Submit, Tokens, Traced
from server.engine_client.replies import End, Replies, WorkerGone

MOST_DEATHS = 2  # of workers that ran a request beside others, until it is tried alone: it may be what kills them
TRIAL_TOKENS = 16  # that a request gives alone, beyond those it had given, until others run beside it again


@dataclass(slots=True)
class Ticket:
    """One request and what is known of it. Times are `time.perf_counter` seconds; 0 where it has not happened."""

    request: Submit
    replies: Replies
    choice: int
    submitted: float = field(default_factory=time.perf_counter)
    first_token: float = 0.0
    last_token: float = 0.0
    gaps: list[float] = field(default_factory=list)  # seconds between tokens that came together and the next
    token_ids: list[int] = field(default_factory=list)
    num_deaths: int = 0
    is_running: bool = False  # for sure: the present worker has given tokens
    is_aborted: bool = False
    last_step: int = 0  # traced so far
    steps_before: int = 0  # of them those of earlier workers

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    def take_tokens(self, tokens: Tokens) -> None:
        now = time.perf_counter()
        if self.first_token:
            self.gaps.append(now - self.last_token)
        self.last_token = now
        self.first_token = self.first_token or now
        self.is_running = True
        self.token_ids += tokens.token_ids
        self.replies.put_tokens(self.choice, tokens)

    def take_news(self, news: PromptLogprobs | Traced) -> None:
        """What comes beside the tokens; a worker numbers the steps that it traces from 1."""
        if isinstance(news, Traced):
            self.last_step = self.steps_before + news.trace.number
            trace = msgspec.structs.replace(news.trace, number=self.last_step)
            news = msgspec.structs.replace(news, trace=trace)
        self.replies.put_news(self.choice, news)

    def aborted(self) -> Finished:
        """Its end, where no worker is left to say it."""
        stats = RequestStats(prompt_tokens=len(self.request.prompt), emitted=self.num_tokens)
        return Finished(request_id=self.request.request_id, reason="abort", stats=stats)


class OpenRequests:
    """In the order of their arrival. on_end: told of each at its end."""

    def __init__(self, on_end: Callable[[Ticket, End], None]) -> None:
        self._on_end = on_end
        self._tickets: dict[str, Ticket] = {}
        self._held: dict[str, Ticket] = {}  # of them those that the present worker was not yet asked for
        self._on_trial: Ticket | None = None
        self._trial_end = 0  # its number of tokens
        self._is_empty = asyncio.Event()
        self._is_empty.set()

    def __len__(self) -> int:
        return len(self._tickets)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._tickets

    def ids(self) -> list[str]:
        return list(self._tickets)

    def num_open(self, tenant: str | None) -> int:
        """Of one tenant; None: of all."""
        return len(self._tickets) if tenant is None else sum(1 for _ in self._of(tenant))

    def num_waiting_tokens(self, tenant: str | None) -> int:
        """Of the prompts of requests without a first token."""
        return sum(len(ticket.request.prompt) for ticket in self._of(tenant) if not ticket.num_tokens)

    def num_by_tenant(self) -> Counter[tuple[str, bool]]:
        """How many are open, by whose they are and whether they have a first token."""
        return Counter((ticket.request.tenant, ticket.num_tokens > 0) for ticket in self._tickets.values())

    def oldest(self, tenant: str | None, default: float) -> float:
        """When the first of those that are open was submitted."""
        return min((ticket.submitted for ticket in self._of(tenant)), default=default)

    def has_begun(self, request_ids: Sequence[str]) -> bool:
        """Whether one of them has a token, or has ended."""
        tickets = [self._tickets.get(request_id) for request_id in request_ids]
        return any(ticket is None or ticket.num_tokens for ticket in tickets)

    def _of(self, tenant: str | None) -> Iterator[Ticket]:
        return (ticket for ticket in self._tickets.values() if tenant in (None, ticket.request.tenant))

    async def wait_until_empty(self) -> None:
        await self._is_empty.wait()

    def add(self, ticket: Ticket) -> None:
        request_id = ticket.request.request_id
        assert request_id not in self._tickets, request_id
        self._tickets[request_id] = self._held[request_id] = ticket
        self._is_empty.clear()

    def is_held(self, request_id: str) -> bool:
        """Whether no worker runs it at present."""
        return request_id in self._held

    def due(self) -> list[Submit]:
        """What a worker that is ready is to be asked for now, to go on after the tokens that were given: all that is
        held, or of requests that two workers died of one, alone."""
        if not self._held or self._on_trial is not None:
            return []
        suspect = next((ticket for ticket in self._held.values() if ticket.num_deaths >= MOST_DEATHS), None)
        if suspect is None:
            tickets, self._held = list(self._held.values()), {}
        else:
            del self._held[suspect.request.request_id]
            tickets, self._on_trial, self._trial_end = [suspect], suspect, suspect.num_tokens + TRIAL_TOKENS
        return [msgspec.structs.replace(ticket.request, resumed=list(ticket.token_ids)) for ticket in tickets]

    def on_event(self, event: RequestEvent) -> None:
        """Hand over what a worker says of a request; what it says of one that has ended is dropped."""
        ticket = self._tickets.get(event.request_id)
        match event:
            case Finished() | Rejected() | Failed():
                self.end(event.request_id, event)
            case Tokens() if ticket is not None:
                ticket.take_tokens(event)
                self._review(ticket)
            case PromptLogprobs() | Traced() if ticket is not None:
                ticket.take_news(event)

    def _review(self, ticket: Ticket) -> None:
        """One more death is needed to try it again, once it went well alone."""
        if ticket is self._on_trial and ticket.num_tokens >= self._trial_end:
            ticket.num_deaths, self._on_trial = MOST_DEATHS - 1, None

    def note_abort(self, request_id: str) -> None:
        """A worker was told to give it up; should it die before it has, nobody wants the rest."""
        self._tickets[request_id].is_aborted = True

    def abort(self, request_id: str) -> None:
        """End a request that no worker runs."""
        self.end(request_id, self._tickets[request_id].aborted())

    def end(self, request_id: str, end: End) -> None:
        ticket = self._tickets.pop(request_id, None)
        if ticket is None:
            return
        self._held.pop(request_id, None)
        if ticket is self._on_trial:
            self._on_trial = None
        ticket.replies.put_end(ticket.choice, end)
        self._on_end(ticket, end)
        if not self._tickets:
            self._is_empty.set()

    def end_all(self, end: WorkerGone) -> None:
        for request_id in self.ids():
            self.end(request_id, end)

    def end_started(self, end: WorkerGone) -> None:
        """Those of which a reader has tokens."""
        for request_id in [request_id for request_id, ticket in self._tickets.items() if ticket.token_ids]:
            self.end(request_id, end)

    def note_death(self, max_running: int, reason: str) -> None:
        """A worker died that ran at most so many: those that it gave tokens, and those whose turn it was.

        Ends the request that was tried alone, or ran alone for the second time, and those that were being given up.
        """
        may_have_run = set(self._in_turn()[:max_running])
        asked = [(request_id, each) for request_id, each in self._tickets.items() if request_id not in self._held]
        ran = [ticket for request_id, ticket in asked if ticket.is_running or request_id in may_have_run]
        for ticket in ran:
            ticket.num_deaths += 1
        guilty = self._on_trial or (ran[0] if len(ran) == 1 and ran[0].num_deaths >= MOST_DEATHS else None)
        self._held, self._on_trial = dict(self._tickets), None
        for request_id, ticket in list(self._tickets.items()):
            ticket.is_running = False
            ticket.steps_before = ticket.last_step
            if ticket.is_aborted:
                self.abort(request_id)
            elif ticket is guilty:
                count = "Two" if ticket.num_deaths == MOST_DEATHS else "Three"
                message = f"{count} worker processes died while they ran this request; the last one {reason}."
                self.end(request_id, WorkerGone(message, "worker_died"))

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
