"""The limits of the queue: how many requests may be open, what they may hold, and how many prompt tokens may wait, in
all and of one key; and after how many seconds a refused client may come again.

Owns the limits and the requests that ended lately; knows nothing of processes. A call that finds nothing waiting is
let in whatever its length, and one that finds nothing open whatever its bytes.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from decoding.worker.calls import Submit
from server.engine_client.open_requests import OpenRequests, Ticket
from server.http.errors import ApiError

WINDOW = 60.0  # seconds that the rate of ends is measured over
MOST_ENDS = 1024  # that the rate is measured from
LONGEST_RETRY = 60  # seconds; OpenAI's clients do not wait for two minutes


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueLimits:
    """max_waiting bounds the requests beyond those that may run, max_waiting_tokens the prompt tokens of requests
    without a first token, max_request_bytes what open requests hold in their workers, each in all and of one key;
    max_queue_seconds bounds the wait for a call's first token. None is no limit."""

    max_waiting: int
    max_waiting_tokens: int | None = None
    max_waiting_per_key: int | None = None
    max_waiting_tokens_per_key: int | None = None
    max_request_bytes: int | None = None
    max_request_bytes_per_key: int | None = None
    max_queue_seconds: float | None = None


class _End(NamedTuple):
    """A request that has ended. Times are `time.perf_counter` seconds."""

    tenant: str
    submitted: float
    ended: float
    prompt_len: int
    num_bytes: int


class QueueGate:
    def __init__(self, limits: QueueLimits, requests: OpenRequests) -> None:
        self.limits = limits
        self._requests = requests
        self._ends: deque[_End] = deque(maxlen=MOST_ENDS)

    def note_end(self, ticket: Ticket) -> None:
        request = ticket.request
        self._ends.append(
            _End(request.tenant, ticket.submitted, time.perf_counter(), len(request.prompt), ticket.num_bytes)
        )

    def check(self, requests: Sequence[Submit], num_bytes: int, max_running: int) -> None:
        """Raise ApiError 429 if these requests of one call, which hold so many bytes, are more than may come now."""
        limits, tenant = self.limits, requests[0].tenant
        for whose, max_waiting, max_tokens, max_bytes in (
            (None, limits.max_waiting, limits.max_waiting_tokens, limits.max_request_bytes),
            (tenant, limits.max_waiting_per_key, limits.max_waiting_tokens_per_key, limits.max_request_bytes_per_key),
        ):
            by = "" if whose is None else " of this API key"
            if max_waiting is not None:
                excess = self._requests.num_open(whose) + len(requests) - max_running - max_waiting
                if excess > 0:
                    raise self._full(f"Too many requests{by}", whose, excess, lambda _: 1)
            if max_tokens is not None and (num_waiting := self._requests.num_waiting_tokens(whose)):
                excess = num_waiting + sum(len(request.prompt) for request in requests) - max_tokens
                if excess > 0:
                    raise self._full(f"Too many prompt tokens{by}", whose, excess, lambda end: end.prompt_len)
            if max_bytes is not None and (num_held := self._requests.num_bytes(whose)):
                excess = num_held + num_bytes - max_bytes
                if excess > 0:
                    raise self._full(f"Too many bytes of requests{by}", whose, excess, lambda end: end.num_bytes)

    def retry_after(self, tenant: str | None, excess: int, amount: Callable[[_End], int] = lambda _: 1) -> int:
        """Seconds until `excess` is worked off at the rate of the last minute, of one tenant or of all where tenant is
        None. Where nothing ended in that minute, as long again as the oldest request has taken."""
        now = time.perf_counter()
        ends = [end for end in self._ends if tenant in (None, end.tenant) and end.ended > now - WINDOW]
        if ends:
            span = min(now - min(end.submitted for end in ends), WINDOW)
            seconds = excess * span / max(sum(map(amount, ends)), 1)
        else:
            seconds = now - self._requests.oldest(tenant, now)
        return min(max(math.ceil(seconds), 1), LONGEST_RETRY)

    def _full(self, what: str, tenant: str | None, excess: int, amount: Callable[[_End], int]) -> ApiError:
        message = f"{what} are waiting; try again later."
        return ApiError(429, message, None, "queue_full", self.retry_after(tenant, excess, amount))
