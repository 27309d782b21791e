"""What has arrived for one HTTP call and was not read yet: one mailbox for all its choices.

Knows nothing of sockets or text. The invariant: putting never waits and unread tokens merge, so a slow reader
costs at most its own tokens, and every choice ends in exactly one end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from decoding.core.token_logprobs import TokenLogprobs
from decoding.worker.messages import Failed, Finished, PromptLogprobs, Rejected, Tokens, Traced


@dataclass(frozen=True, slots=True)
class WorkerGone:
    """The fourth way to end: the worker died, or the server stops before it is done."""

    message: str
    code: str


@dataclass(frozen=True, slots=True)
class Expired:
    """The fifth: its time was over. status: of the answer; retry_after: seconds."""

    message: str
    code: str
    status: int
    retry_after: int | None = None


End = Finished | Rejected | Failed | WorkerGone | Expired


@dataclass(slots=True)
class Reply:
    """News of one choice since the last read."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)  # one for each token, or none
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    steps: list[Traced] = field(default_factory=list)  # of these tokens, where steps are traced
    end: End | None = None


class Replies:
    """Choice `i` is the i-th of `request_ids`. One reader; `abort` is told the ids to give up on close.

    A read that finds nothing for `patience` seconds returns empty-handed.
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
        """Every choice has ended and every end was read."""
        return not self._open and not self._unread

    def add_deadline(self, deadline: asyncio.TimerHandle) -> None:
        """One that need not be kept once nobody reads any more."""
        self._deadlines.append(deadline)

    def put_tokens(self, choice: int, tokens: Tokens) -> None:
        if choice in self._open:
            reply = self._unread.setdefault(choice, Reply())
            reply.token_ids.extend(tokens.token_ids)
            if tokens.logprobs is not None:
                reply.logprobs.extend(tokens.logprobs)
            self._wake()

    def put_news(self, choice: int, news: PromptLogprobs | Traced) -> None:
        """What comes beside the tokens."""
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
        """Wait for news; empty if there was none."""
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
        """The news that there are."""
        news, self._unread = self._unread, {}
        return news

    def abort(self, choice: int) -> None:
        """Stop one choice; its end still comes."""
        if choice in self._open:
            self._abort([self._open[choice]])

    def close(self) -> None:
        """Stop what still runs and forget what is unread. Safe to call twice."""
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
        """One timer serves many reads: it is set again for what is left of the patience with the present one."""
        loop = asyncio.get_running_loop()
        left = self._waiting_since + self._patience - loop.time()
        self._timer = loop.call_later(left if left > 0 else self._patience, self._run_out)
        if left <= 0:
            self._wake()
