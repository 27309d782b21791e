"""Work that gives way to what others compute. Standard library only."""

from __future__ import annotations

import contextlib
import os
import select
import sys
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from threading import Thread
from typing import IO, TypeVar

_LAST, _USUAL = 19, 0  # on the scale of `nice`
_AUTOGROUP = Path("/proc/self/autogroup")

T = TypeVar("T")


def patiently(work: Callable[[], T], until: IO[str]) -> T | None:
    """Do the work in a thread that runs when nobody else wants its processor; returns and raises what it does, or None
    once `until` can be read: the work then goes on as slowly, which may take minutes.

    Linux alone has priorities of single threads. Anyone may lower one and few may raise it, so the calling thread keeps
    its own. Where the kernel shares processors out by session first (autogroups), this process's session waits, too.
    """
    if sys.platform != "linux":
        return work()
    result: Future[T] = Future()
    done, finish = os.pipe()

    def do() -> None:
        os.setpriority(os.PRIO_PROCESS, 0, _LAST)
        try:
            result.set_result(work())
        except BaseException as error:
            result.set_exception(error)
        os.close(finish)

    _set_group(_LAST)
    thread = Thread(target=do, daemon=True)
    thread.start()
    select.select([done, until.fileno()], [], [])
    os.close(done)
    _set_group(_USUAL)
    if not result.done():
        return None
    thread.join()
    return result.result()


def _set_group(priority: int) -> None:
    with contextlib.suppress(OSError):  # such as a kernel without autogroups
        _AUTOGROUP.write_text(str(priority))
