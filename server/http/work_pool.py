"""Threads for what would hold up the event loop: reading large bodies, and making prompts and replies of them.

Owns the threads, few so that streams go on beside them; knows nothing of the work.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import TypeVar

SMALL = 8192  # bytes of a body that is worked on at once; more takes milliseconds
NUM_THREADS = 2  # each may make a stream wait for the interpreter's lock, see SWITCH_SECONDS in the runner

T = TypeVar("T")


class WorkPool:
    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="body")

    async def run(self, size: int, work: Callable[[], T]) -> T:
        """What `work` returns. size: of what it works on, in bytes; raises what it raises."""
        return work() if size <= SMALL else await self.run_beside(work)

    async def run_beside(self, work: Callable[[], T]) -> T:
        """What `work`, of any size, returns; raises what it raises."""
        context = copy_context()  # what was chosen for the request holds there too
        return await asyncio.get_running_loop().run_in_executor(self._threads, lambda: context.run(work))

    def close(self) -> None:
        """Work that has not begun is dropped."""
        self._threads.shutdown(wait=False, cancel_futures=True)
