"""The replies of one HTTP call that have arrived and were not read yet: one mailbox for all its choices.

Knows nothing of sockets or text. Invariant: putting never waits and unread tokens merge, so a slow reader takes at most
the room of its own tokens, and every choice gets exactly one end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from decoding.core.events import Failed, Finished, Pooled, PromptLogprobs, Rejected, Tokens, Traced
from decoding.core.token_logprobs import TokenLogprobs

PROMPT_PATIENCE = 1.0  # seconds that a read waits at most while a prompt runs


@dataclass(frozen=True, slots=True)
class PromptRun:
    """How far a prompt is that runs in several steps. Counts are of tokens: processed includes cached, those that need
    not be run. seconds: from its first step to the latest news of it."""

    total: int
    cached: int
    processed: int
    seconds: float


@dataclass(frozen=True, slots=True)
class WorkerGone:
    """The end of a request whose worker died, or that the server's stop cut off."""

    message: str
    code: str


@dataclass(frozen=True, slots=True)
class Expired:
    """The end of a request whose time was over. status is that of the HTTP answer, retry_after is in seconds."""

    message: str
    code: str
    status: int
    retry_after: int | None = None


End = Finished | Rejected | Failed | WorkerGone | Expired


@dataclass(slots=True)
class Reply:
    """What came for one choice since the last read."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)  # one for each token, or none
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    vector: bytes | None = None  # the prompt's embedding, see `Pooled`
    steps: list[Traced] = field(default_factory=list)  # that gave these tokens, where steps are traced
    end: End | None = None


class Replies:
    """Choice `i` is the i-th of `request_ids`. There is one reader. On close `abort` is called with the ids that have
    no end. A read that finds nothing for `patience` seconds returns nothing, and for a second at most while a prompt
    runs that takes several steps: how far those are is in `prompts`.
    """

    def __init__(
        self, request_ids: Sequence[str], abort: Callable[[Sequence[str]], None], patience: float = 15.0
    ) -> None:
        self._open = dict(enumerate(request_ids))
        self._abort = abort
        self._patience = patience
        self._unread: dict[int, Reply] = {}
        self._prompts: dict[int, PromptRun] = {}
        self._reader: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._deadlines: list[asyncio.TimerHandle] = []
        self._waiting_since = 0.0

    @property
    def is_finished(self) -> bool:
        """Whether every choice has ended and every end was read."""
        return not self._open and not self._unread

    @property
    def prompts(self) -> Mapping[int, PromptRun]:
        """How far the prompts are that run, by choice."""
        return self._prompts

    def add_deadline(self, deadline: asyncio.TimerHandle) -> None:
        """Keep a timer, which is cancelled once nobody reads any more."""
        self._deadlines.append(deadline)

    def put_progress(self, choice: int, run: PromptRun) -> None:
        """Note how far a choice's prompt is. This wakes no reader, but one that waits may wait for less long."""
        if choice in self._open:
            self._prompts[choice] = run
            if self._timer is not None:
                self._timer.cancel()
                self._set_timer()

    def drop_progress(self, choice: int) -> None:
        """Note that a choice's prompt does not run any more, and waits."""
        self._prompts.pop(choice, None)

    def put_tokens(self, choice: int, tokens: Tokens) -> None:
        if choice in self._open:
            self._prompts.pop(choice, None)
            reply = self._unread.setdefault(choice, Reply())
            reply.token_ids.extend(tokens.token_ids)
            if tokens.logprobs is not None:
                reply.logprobs.extend(tokens.logprobs)
            self._wake()

    def put_news(self, choice: int, news: PromptLogprobs | Pooled | Traced) -> None:
        """Add what comes beside the tokens."""
        if choice not in self._open:
            return
        reply = self._unread.setdefault(choice, Reply())
        if isinstance(news, Traced):
            reply.steps.append(news)
        elif isinstance(news, Pooled):
            reply.vector = news.vector
        else:
            reply.prompt_logprobs = news.logprobs
        self._wake()

    def put_end(self, choice: int, end: End) -> None:
        if self._open.pop(choice, None) is not None:
            self._prompts.pop(choice, None)
            self._unread.setdefault(choice, Reply()).end = end
            self._wake()

    async def read(self) -> dict[int, Reply]:
        """Wait for tokens, ends and what comes beside them. Empty if none came for as long as there is patience."""
        if not self._unread:
            loop = asyncio.get_running_loop()
            self._reader = loop.create_future()
            self._waiting_since = loop.time()
            if self._timer is None:
                self._set_timer()
            try:
                await self._reader
            finally:
                self._reader = None
        return self.take()

    def take(self) -> dict[int, Reply]:
        """Take the news that have come, without waiting."""
        news, self._unread = self._unread, {}
        return news

    def abort(self, choice: int) -> None:
        """Stop one choice. Its end still comes."""
        if choice in self._open:
            self._abort([self._open[choice]])

    def close(self) -> None:
        """Stop the choices that still run and drop what is unread. Safe to call twice."""
        if self._open:
            self._abort(list(self._open.values()))
        self._open, self._unread, self._prompts = {}, {}, {}
        for deadline in self._deadlines:
            deadline.cancel()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    def _run_out(self) -> None:
        """Wake the reader if it has waited long enough. One timer serves many reads, so it is set again for the rest of
        the present read's patience."""
        if self._seconds_left() <= 0:
            self._waiting_since = asyncio.get_running_loop().time()
            self._wake()
        self._set_timer()

    def _set_timer(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._seconds_left(), self._run_out)

    def _seconds_left(self) -> float:
        """Until the present read has waited for as long as it may."""
        patience = min(self._patience, PROMPT_PATIENCE) if self._prompts else self._patience
        return self._waiting_since + patience - asyncio.get_running_loop().time()
