"""Work that gives way to what others compute. Standard library only."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

_LAST, _USUAL = 19, 0  # on the scale of `nice`
_AUTOGROUP = Path("/proc/self/autogroup")

T = TypeVar("T")


def patiently(work: Callable[[], T]) -> T:
    """Do the work in a thread that runs when nobody else wants its processor; returns and raises what it does.

    Linux alone has priorities of single threads. Anyone may lower one and few may raise it, so the calling thread keeps
    its own. Where the kernel shares processors out by session first (autogroups), this process's session waits, too.
    """
    if sys.platform != "linux":
        return work()
    _set_group(_LAST)
    try:
        with ThreadPoolExecutor(1, initializer=os.setpriority, initargs=(os.PRIO_PROCESS, 0, _LAST)) as thread:
            return thread.submit(work).result()
    finally:
        _set_group(_USUAL)


def _set_group(priority: int) -> None:
    with contextlib.suppress(OSError):  # such as a kernel without autogroups
        _AUTOGROUP.write_text(str(priority))
