"""Ends a child process together with its parent. Standard library only, and quick.

On Linux the kernel kills the child, even one that is stopped or stuck; elsewhere the child has to ask `is_orphan`. The
kernel takes the thread that started the child for the parent, so that thread must live as long as the child.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def end_with(parent: int) -> None:
    """Have the kernel kill this process when `parent` ends; exit now if it has ended already.

    parent: the process id that the parent itself passed on, since it may die before the kernel is told.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if is_orphan(parent):
        os._exit(0)


def is_orphan(parent: int) -> bool:
    """Whether `parent` is no longer this process's parent, because it has ended."""
    return os.getppid() != parent
