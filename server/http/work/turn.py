"""Lets the event loop go on with other things in the midst of long work."""

from __future__ import annotations

from asyncio import sleep
from time import monotonic

LONGEST = 0.005  # seconds


class Turn:
    """The time since work began, or since others last had the event loop."""

    def __init__(self) -> None:
        self._began = monotonic()

    async def share(self) -> None:
        """Let others have the event loop, if this turn has lasted for LONGEST."""
        if monotonic() - self._began > LONGEST:
            await sleep(0)
            self._began = monotonic()
