"""Gives memory back to the system while the server is idle.

What large bodies and replies took would stay with the C library, which keeps what each thread has freed.
"""

from __future__ import annotations

import asyncio
import ctypes
from collections.abc import Callable

PAUSE = 20.0  # seconds


async def give_back_when_idle(num_open: Callable[[], int]) -> None:
    """Ask the C library every PAUSE for what it does not use, if no request runs. Returns where it is not glibc."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    while trim is not None:
        await asyncio.sleep(PAUSE)
        if num_open() == 0:
            await asyncio.to_thread(trim, 0)  # some milliseconds, without the interpreter's lock
