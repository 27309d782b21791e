"""Threads for work that would block the event loop: reading large bodies, making prompts of them, writing large replies.

The threads are few, so that streams go on beside them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import TypeVar

SMALL = 8192  # bytes up to which a body is worked on in the event loop itself; more would take milliseconds
NUM_THREADS = 2  # each may make a stream wait for the interpreter's lock, see SWITCH_SECONDS in the runner

T = TypeVar("T")


class WorkPool:
    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="body")

    async def run(self, size: int, work: Callable[[], T]) -> T:
        """Run `work`, in a thread unless it is small, and return its result. size: bytes that it works on."""
        return work() if size <= SMALL else await self.run_beside(work)

    async def run_beside(self, work: Callable[[], T]) -> T:
        """Run `work` in a thread and return its result."""
        context = copy_context()  # so that context variables of the request (unknown_fields) hold in the thread
        return await asyncio.get_running_loop().run_in_executor(self._threads, lambda: context.run(work))

    def close(self) -> None:
        """Stop the threads; work that has not begun is dropped."""
        self._threads.shutdown(wait=False, cancel_futures=True)
