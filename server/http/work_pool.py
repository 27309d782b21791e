"""Threads for work that would block the event loop: reading large bodies, making prompts, writing large replies.

The threads are few, so that streams go on beside them. Keys share them by their weights: a free thread goes to the key
that has used them least. Invariant: work whose client leaves before its turn is never begun.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass, field
from typing import TypeVar

from starlette.requests import Request

from server.http.auth import caller_of
from server.http.sse import until_disconnect

SMALL = 8192  # bytes up to which a conversation is worked on in the event loop itself; more would take milliseconds
NUM_THREADS = 2  # each may make a stream wait for the interpreter's lock, see SWITCH_SECONDS in the runner

T = TypeVar("T")


@dataclass(slots=True)
class Share:
    """What one key has of the threads. used: seconds that its work has taken, divided by its weight; waiting: a future
    for each of its works that has no thread yet, in the order in which they came."""

    weight: float = 1.0
    used: float = 0.0
    waiting: dict[asyncio.Future[None], None] = field(default_factory=dict)


class WorkPool:
    """clock: in seconds. Everything but the work itself happens on the event loop."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._threads = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="body")
        self._clock = clock
        self._num_free = NUM_THREADS
        self._shares: dict[str, Share] = {}  # by tenant, so at most one for each key
        self._least_used = 0.0  # by the key that had the last turn: a key that was away has no more time owed to it

    async def run(self, request: Request, work: Callable[[], T], more_bytes: int = 0) -> T:
        """Run `work` on a request's body and `more_bytes` that were stored, in a thread unless both together are small,
        and return its result. Raises ApiError where the client leaves first."""
        is_small = len(await request.body()) + more_bytes <= SMALL
        return work() if is_small else await self.run_beside(request, work)

    async def run_beside(self, request: Request, work: Callable[[], T]) -> T:
        """The same, always in a thread."""
        caller = caller_of(request)
        return await until_disconnect(request.receive, self.run_for(caller.tenant, caller.terms.weight, work))

    async def run_for(self, tenant: str, weight: float, work: Callable[[], T]) -> T:
        """Run `work` in a thread, when it is the tenant's turn, and return its result."""
        share = self._shares.setdefault(tenant, Share())
        share.weight = weight
        await self._turn(share)
        context, began = copy_context(), self._clock()  # context variables of the request hold in the thread, too
        running = asyncio.get_running_loop().run_in_executor(self._threads, lambda: context.run(work))
        running.add_done_callback(lambda _: self._end(share, self._clock() - began))
        return await asyncio.shield(running)  # its thread cannot be stopped, and is not free before its end

    def close(self) -> None:
        """Stop the threads; work that has not begun is dropped."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _turn(self, share: Share) -> None:
        """Wait for a thread, and take it."""
        if not share.waiting:
            share.used = max(share.used, self._least_used)
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        share.waiting[turn] = None
        self._begin()
        try:
            await turn
        except asyncio.CancelledError:
            share.waiting.pop(turn, None)
            if not turn.cancelled():  # it has just got a thread
                self._end(share, 0.0)
            raise

    def _begin(self) -> None:
        """Give free threads to those who wait for one."""
        while self._num_free and (sharing := [each for each in self._shares.values() if each.waiting]):
            share = min(sharing, key=lambda each: each.used)
            turn = next(iter(share.waiting))
            del share.waiting[turn]
            if not turn.cancelled():
                self._least_used = share.used
                self._num_free -= 1
                turn.set_result(None)

    def _end(self, share: Share, seconds: float) -> None:
        share.used += seconds / share.weight
        self._num_free += 1
        self._begin()
