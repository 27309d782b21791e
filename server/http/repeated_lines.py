"""Thins out log lines that come by the thousand, caused by a client, a full disk or a lost file.

Of each kind one line a minute is shown, with how many it hid.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

SECONDS = 60.0
KINDS = (  # how such lines begin
    "A connection was closed",
    "Too many connections",
    "socket.accept() out of system resource",
    "A session cannot be written",
    "A session was not read",
    "An old session",
    "The folder of sessions",
    "The sessions in",
    "The API key file cannot be read",
)
LOGGERS = ("gander.connections", "gander.keys", "gander.sessions", "uvicorn.error", "asyncio")


class OnceAMinute(logging.Filter):
    """A log filter that lets one line of each kind through in a minute. now: a clock in seconds."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._now = now
        self._shown: dict[str, float] = {}  # when a line of each kind was last shown
        self._num_hidden: dict[str, int] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        kind = next((kind for kind in KINDS if str(record.msg).startswith(kind)), None)
        if kind is None:
            return True
        now = self._now()
        if now - self._shown.get(kind, -SECONDS) < SECONDS:
            self._num_hidden[kind] = self._num_hidden.get(kind, 0) + 1
            return False
        self._shown[kind] = now
        num_hidden = self._num_hidden.pop(kind, 0)
        if num_hidden:
            record.msg = f"{record.msg} ({num_hidden} more like it were not shown)"
        return True


def quieten() -> None:
    """Add the filter to the loggers that write such lines."""
    lines = OnceAMinute()
    for name in LOGGERS:
        logging.getLogger(name).addFilter(lines)
