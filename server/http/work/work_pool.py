"""Work that would block the event loop: reading bodies, making prompts, writing large replies.

Small work is done on the event loop, one in each of its rounds, and large work in threads, which are few: so streams go
on beside both. Invariant: work whose client leaves before its turn is never begun.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import TypeVar

from starlette.requests import Request

from server.http.auth import caller_of
from server.http.sse import until_disconnect
from server.http.work.places import Places

SMALL = 8192  # bytes up to which a conversation is worked on in the event loop itself; more would take milliseconds
NUM_THREADS = 2  # each may make a stream wait for the interpreter's lock, see SWITCH_SECONDS in the runner

T = TypeVar("T")


class WorkPool:
    """clock: in seconds. Everything but the work itself happens on the event loop."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._threads = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="body")
        self._clock = clock
        self._in_threads = Places(NUM_THREADS)
        self._on_loop = Places(1)

    async def run(self, request: Request, work: Callable[[], T], more_bytes: int = 0) -> T:
        """Run `work` on a request's body and `more_bytes` that were stored, in a thread unless both together are small,
        and return its result. Raises ApiError where the client leaves first."""
        if len(await request.body()) + more_bytes > SMALL:
            return await self.run_beside(request, work)
        caller = caller_of(request)
        return await self.run_here(caller.tenant, caller.terms.weight, work)

    async def run_here(self, tenant: str, weight: float, work: Callable[[], T]) -> T:
        """Run `work` on the event loop, in a round in which no other does, and return its result."""
        share = await self._on_loop.take(tenant, weight)
        began = self._clock()
        try:
            return work()
        finally:
            seconds = self._clock() - began
            asyncio.get_running_loop().call_soon(self._on_loop.give_back, share, seconds)  # in the next round

    async def run_beside(self, request: Request, work: Callable[[], T]) -> T:
        """Run `work` in a thread, whatever its size. Raises ApiError where the client leaves first."""
        caller = caller_of(request)
        return await until_disconnect(request.receive, self.run_for(caller.tenant, caller.terms.weight, work))

    async def run_for(self, tenant: str, weight: float, work: Callable[[], T]) -> T:
        """Run `work` in a thread, when it is the tenant's turn, and return its result."""
        share = await self._in_threads.take(tenant, weight)
        context, began = copy_context(), self._clock()  # context variables of the request hold in the thread, too
        running = asyncio.get_running_loop().run_in_executor(self._threads, lambda: context.run(work))
        running.add_done_callback(lambda _: self._in_threads.give_back(share, self._clock() - began))
        return await asyncio.shield(running)  # its thread cannot be stopped, and is not free before its end

    def close(self) -> None:
        """Stop the threads; work that has not begun is dropped."""
        self._threads.shutdown(wait=False, cancel_futures=True)
