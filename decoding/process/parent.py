"""Ends a child process together with its parent, or a parent with its child. Standard library only, and quick.

On Linux the kernel kills the child, even one that is stopped or stuck; elsewhere the child has to ask `is_orphan`. The
kernel takes the thread that started the child for the parent, so that thread must live as long as the child.
"""

from __future__ import annotations

import ctypes
import logging
import os
import select
import signal
import sys
from collections.abc import Iterable
from threading import Thread

logger = logging.getLogger("gander.worker")

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


def end_with_any(children: Iterable[int]) -> None:
    """From now on exit with status 1 once one of these child processes ends, whatever this process waits for: a device
    would wait for what the child computes for ever. Returns at once."""
    descriptors = {os.pidfd_open(pid): pid for pid in children}
    if descriptors:
        Thread(target=_end, args=(descriptors,), name="children", daemon=True).start()


def _end(descriptors: dict[int, int]) -> None:
    ended = select.poll()
    for descriptor in descriptors:
        ended.register(descriptor, select.POLLIN)
    pids = [descriptors[descriptor] for descriptor, _ in ended.poll()]
    logger.error("Process %d has ended, which held a part of the model, and so this one ends.", pids[0])
    logging.shutdown()
    os._exit(1)
