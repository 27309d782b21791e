"""Gives memory back to the system while the server is idle: the C library keeps what large bodies and replies took."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from decoding.worker.allocator import give_back_memory

PAUSE = 20.0  # seconds


async def give_back_when_idle(num_open: Callable[[], int]) -> None:
    """Every PAUSE, if no request runs. Never returns."""
    while True:
        await asyncio.sleep(PAUSE)
        if num_open() == 0:
            await asyncio.to_thread(give_back_memory)  # some milliseconds, without the interpreter's lock
