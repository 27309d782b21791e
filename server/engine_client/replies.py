"""The replies of one HTTP call that have arrived and were not read yet: one mailbox for all its choices.

Knows nothing of sockets or text. Invariant: putting never waits and unread tokens merge, so a slow reader takes at most
the room of its own tokens, and every choice gets exactly one end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from decoding.core.events import Failed, Finished, PromptLogprobs, Rejected, Tokens, Traced
from decoding.core.token_logprobs import TokenLogprobs


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
    steps: list[Traced] = field(default_factory=list)  # that gave these tokens, where steps are traced
    end: End | None = None


class Replies:
    """Choice `i` is the i-th of `request_ids`. There is one reader. On close `abort` is called with the ids that have
    no end. A read that finds nothing for `patience` seconds returns nothing.
    """

    def __init__(
        self, request_ids: Sequence[str], abort: Callable[[Sequence[str]], None], patience: float = 15.0
    ) -> None:
        self._open = dict(enumerate(request_ids))
        self._abort = abort
        self._patience = patience
        self._unread: dict[int, Reply] = {}
        self._reader: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._deadlines: list[asyncio.TimerHandle] = []
        self._waiting_since = 0.0

    @property
    def is_finished(self) -> bool:
        """Whether every choice has ended and every end was read."""
        return not self._open and not self._unread

    def add_deadline(self, deadline: asyncio.TimerHandle) -> None:
        """Keep a timer, which is cancelled once nobody reads any more."""
        self._deadlines.append(deadline)

    def put_tokens(self, choice: int, tokens: Tokens) -> None:
        if choice in self._open:
            reply = self._unread.setdefault(choice, Reply())
            reply.token_ids.extend(tokens.token_ids)
            if tokens.logprobs is not None:
                reply.logprobs.extend(tokens.logprobs)
            self._wake()

    def put_news(self, choice: int, news: PromptLogprobs | Traced) -> None:
        """Add what comes beside the tokens."""
        if choice not in self._open:
            return
        reply = self._unread.setdefault(choice, Reply())
        if isinstance(news, Traced):
            reply.steps.append(news)
        else:
            reply.prompt_logprobs = news.logprobs
        self._wake()

    def put_end(self, choice: int, end: End) -> None:
        if self._open.pop(choice, None) is not None:
            self._unread.setdefault(choice, Reply()).end = end
            self._wake()

    async def read(self) -> dict[int, Reply]:
        """Wait for news of any choice. Empty if none came for as long as there is patience."""
        if not self._unread:
            loop = asyncio.get_running_loop()
            self._reader = loop.create_future()
            self._waiting_since = loop.time()
            if self._timer is None:
                self._timer = loop.call_later(self._patience, self._run_out)
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
        self._open, self._unread = {}, {}
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
        loop = asyncio.get_running_loop()
        left = self._waiting_since + self._patience - loop.time()
        self._timer = loop.call_later(left if left > 0 else self._patience, self._run_out)
        if left <= 0:
            self._wake()
