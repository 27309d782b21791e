"""What has arrived for one HTTP call and was not read yet: one mailbox for all its choices.

Knows nothing of sockets or text. The invariant: putting never waits and unread tokens merge, so a slow reader
costs at most its own tokens, and every choice ends in exactly one end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from decoding.messages import Failed, Finished, Rejected, Tokens


@dataclass(frozen=True, slots=True)
class WorkerGone:
    """The fourth way to end: the worker died, or the server stops before it is done."""

    message: str
    code: str


End = Finished | Rejected | Failed | WorkerGone


@dataclass(slots=True)
class Reply:
    """News of one choice since the last read."""

    token_ids: list[int] = field(default_factory=list)
    end: End | None = None


class Replies:
    """Choice `i` is the i-th of `request_ids`. One reader; `abort` is told the ids to give up on close."""

    def __init__(self, request_ids: Sequence[str], abort: Callable[[Sequence[str]], None]) -> None:
        self._open = dict(enumerate(request_ids))
        self._abort = abort
        self._unread: dict[int, Reply] = {}
        self._has_news = asyncio.Event()

    @property
    def is_finished(self) -> bool:
        """Every choice has ended and every end was read."""
        return not self._open and not self._unread

    def put_tokens(self, choice: int, tokens: Tokens) -> None:
        if choice in self._open:
            self._unread.setdefault(choice, Reply()).token_ids.extend(tokens.token_ids)
            self._has_news.set()

    def put_end(self, choice: int, end: End) -> None:
        if self._open.pop(choice, None) is not None:
            self._unread.setdefault(choice, Reply()).end = end
            self._has_news.set()

    async def read(self, timeout: float) -> dict[int, Reply]:
        """Wait for news, at most `timeout` seconds; empty if there was none."""
        if not self._has_news.is_set():
            try:
                async with asyncio.timeout(timeout):
                    await self._has_news.wait()
            except TimeoutError:
                return {}
        self._has_news.clear()
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
