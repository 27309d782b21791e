"""The requests without an end, whichever worker runs them: whose they are, and what each was given so far.

Knows messages, nothing of processes. Invariant: every request gets exactly one end, and its reader sees each token of
its reply once, however many workers computed it.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import msgspec

from decoding.core.events import (
    Failed,
    Finished,
    Pooled,
    PromptLogprobs,
    PromptProgress,
    Rejected,
    RequestEvent,
    Tokens,
    Traced,
)
from decoding.core.request import FinishReason
from decoding.core.stats import RequestStats
from decoding.worker.calls import Submit
from server.engine_client.replies import End, PromptRun, Replies


@dataclass(slots=True)
class Ticket:
    """One request and what is known of it.

    num_bytes: its part of what the call holds in a worker. prompt_began: when the worker first told how far its prompt
    is; num_processed: how far that is, in tokens. worker is the number of the worker that runs it, or will.
    num_deaths counts the workers that died of a step in which it ran. Times are `time.perf_counter` seconds, and 0
    where it has not happened.
    """

    request: Submit
    replies: Replies
    choice: int
    num_bytes: int = 0
    worker: int = 0
    submitted: float = field(default_factory=time.perf_counter)
    prompt_began: float = 0.0
    num_processed: int = 0
    first_token: float = 0.0
    last_token: float = 0.0
    gaps: list[float] = field(default_factory=list)  # seconds between one batch of tokens and the next
    token_ids: list[int] = field(default_factory=list)
    num_deaths: int = 0
    is_aborted: bool = False
    last_step: int = 0  # how many steps were traced so far
    steps_before: int = 0  # how many of them earlier workers ran

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_prompt_left(self) -> int:
        """How many tokens of its prompt are still to be run, as far as is known."""
        return 0 if self.token_ids else len(self.request.prompt) - self.num_processed

    def take_progress(self, progress: PromptProgress) -> None:
        now = time.perf_counter()
        self.prompt_began = self.prompt_began or now
        self.num_processed = progress.processed
        total = len(self.request.prompt)
        run = PromptRun(total, progress.cached, progress.processed, now - self.prompt_began)
        self.replies.put_progress(self.choice, run)

    def take_tokens(self, tokens: Tokens) -> None:
        now = time.perf_counter()
        if self.first_token:
            self.gaps.append(now - self.last_token)
        self.last_token = now
        self.first_token = self.first_token or now
        self.token_ids += tokens.token_ids
        self.replies.put_tokens(self.choice, tokens)

    def take_news(self, news: PromptLogprobs | Pooled | Traced) -> None:
        """Hand on what comes beside the tokens. Each worker numbers the steps that it traces from 1; the reader sees
        one numbering."""
        if isinstance(news, Traced):
            self.last_step = self.steps_before + news.trace.number
            trace = msgspec.structs.replace(news.trace, number=self.last_step)
            news = msgspec.structs.replace(news, trace=trace)
        self.replies.put_news(self.choice, news)

    def note_death(self) -> None:
        """Note that the worker that ran it is gone."""
        self.prompt_began, self.num_processed = 0.0, 0
        self.replies.drop_progress(self.choice)
        self.steps_before = self.last_step

    def aborted(self) -> Finished:
        """The end of an aborted request that no worker is left to end."""
        stats = RequestStats(prompt_tokens=len(self.request.prompt), emitted=self.num_tokens)
        return Finished(request_id=self.request.request_id, reason=FinishReason.ABORT, stats=stats)


class OpenRequests:
    """In the order of their arrival. on_end is called with each at its end."""

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
        """How many requests are open, of one tenant or of all where tenant is None."""
        return len(self._tickets) if tenant is None else sum(1 for _ in self._of(tenant))

    def num_waiting_tokens(self, tenant: str | None) -> int:
        """How many tokens the prompts have of requests without a first token."""
        return sum(len(ticket.request.prompt) for ticket in self._of(tenant) if not ticket.num_tokens)

    def num_prompt_tokens_left(self) -> int:
        """How many tokens of all prompts are still to be run, as far as is known."""
        return sum(ticket.num_prompt_left for ticket in self._tickets.values())

    def num_bytes(self, tenant: str | None) -> int:
        """Bytes that open requests hold, of one tenant or of all where tenant is None, see `call_bytes`."""
        return sum(ticket.num_bytes for ticket in self._of(tenant))

    def num_by_tenant(self) -> Counter[tuple[str, bool]]:
        """How many requests are open, by tenant and by whether they have a first token."""
        return Counter((ticket.request.tenant, ticket.num_tokens > 0) for ticket in self._tickets.values())

    def oldest(self, tenant: str | None, default: float) -> float:
        """When the oldest open request was submitted."""
        return min((ticket.submitted for ticket in self._of(tenant)), default=default)

    def has_begun(self, request_ids: Sequence[str]) -> bool:
        """Whether one of these requests has a token or has ended."""
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
        """Hand on what a worker says of a request. What it says of one that has ended is dropped."""
        ticket = self._tickets.get(event.request_id)
        match event:
            case Finished() | Rejected() | Failed():
                self.end(event.request_id, event)
            case PromptProgress() if ticket is not None:
                ticket.take_progress(event)
            case Tokens() if ticket is not None:
                ticket.take_tokens(event)
            case PromptLogprobs() | Pooled() | Traced() if ticket is not None:
                ticket.take_news(event)

    def end(self, request_id: str, end: End) -> None:
        ticket = self._tickets.pop(request_id, None)
        if ticket is None:
            return
        ticket.replies.put_end(ticket.choice, end)
        self._on_end(ticket, end)
        if not self._tickets:
            self._is_empty.set()
