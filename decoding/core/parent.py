"""A process that ends with the one that started it, whatever state it is in. Standard library only, and quick.

On Linux the kernel sees to it, also where this process is stopped or stuck; elsewhere whoever runs has to look. To the
kernel the parent is the thread that started this process, which therefore has to live as long.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def end_with(parent: int) -> None:
    """Have this process killed when `parent` is gone; end it now where that is so already.

    parent: its process id, as it says itself, for it may have died before the kernel was told.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if is_orphan(parent):
        os._exit(0)


def is_orphan(parent: int) -> bool:
    """Whether the process that started this one is another one, or gone."""
    return os.getppid() != parent
