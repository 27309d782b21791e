"""The terminal that a process was started in, and the signal that says it has closed. Standard library only.

SIGHUP also has a service read its files again, so it ends a process only where a terminal is gone.
"""

from __future__ import annotations

import os
import signal
from types import FrameType

STANDARD_STREAMS = 0, 1, 2  # their file descriptors


def has_terminal() -> bool:
    """Whether the process reads from or writes to a terminal that is still open."""
    return any(os.isatty(stream) for stream in STANDARD_STREAMS)


def outlive_hangups() -> None:
    """Ignore SIGHUP from now until another handler is set, unless it says that the terminal has closed: what it asks
    for, reading files again, is still to come. Other programs that this process starts have the usual handler."""
    had_terminal = has_terminal()

    def hang_up(number: int, _frame: FrameType | None) -> None:
        if had_terminal and not has_terminal():
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    signal.signal(signal.SIGHUP, hang_up)
