"""The requests without an end, whichever worker runs them: whose they are, and what each was given so far.

Knows messages, nothing of processes. The invariant: every request gets exactly one end, and its reader sees each token
of its reply once, however many workers gave them.
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
from server.engine_client.replies import End, Replies


@dataclass(slots=True)
class Ticket:
    """One request and what is known of it. worker: the number of the one that runs it, or is to. Times are
    `time.perf_counter` seconds; 0 where it has not happened."""

    request: Submit
    replies: Replies
    choice: int
    worker: int = 0
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

    def note_death(self) -> None:
        """The worker that it was given to is gone."""
        self.is_running = False
        self.steps_before = self.last_step

    def aborted(self) -> Finished:
        """Its end, where no worker is left to say it."""
        stats = RequestStats(prompt_tokens=len(self.request.prompt), emitted=self.num_tokens)
        return Finished(request_id=self.request.request_id, reason="abort", stats=stats)


class OpenRequests:
    """In the order of their arrival. on_end: told of each at its end."""

    def __init__(self, on_end: Callable[[Ticket, End], None]) -> None:
        self._on_end = on_end
        self._tickets: dict[str, Ticket] = {}
        self._is_empty = asyncio.Event()
        self._is_empty.set()

    def __len__(self) -> int:
        return len(self._tickets)

    def find(self, request_id: str) -> Ticket | None:
        return self._tickets.get(request_id)

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
        self._tickets[request_id] = ticket
        self._is_empty.clear()

    def on_event(self, event: RequestEvent) -> None:
        """Hand over what a worker says of a request; what it says of one that has ended is dropped."""
        ticket = self._tickets.get(event.request_id)
        match event:
            case Finished() | Rejected() | Failed():
                self.end(event.request_id, event)
            case Tokens() if ticket is not None:
                ticket.take_tokens(event)
            case PromptLogprobs() | Traced() if ticket is not None:
                ticket.take_news(event)

    def end(self, request_id: str, end: End) -> None:
        ticket = self._tickets.pop(request_id, None)
        if ticket is None:
            return
        ticket.replies.put_end(ticket.choice, end)
        self._on_end(ticket, end)
        if not self._tickets:
            self._is_empty.set()
