"""Delays measurements until the processor is idle, and reports how busy other processes were during them.

Reads /proc/stat. Knows nothing of what is measured. Invariant: all waits together take no longer than the gate's
patience.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

IDLE_SHARE = 0.9  # the share of all processors that must be idle
SAMPLE_SECONDS = 0.25
STAT = Path("/proc/stat")
IDLE_FIELDS = (3, 4)  # idle, and idle while waiting for a disk
NUM_FIELDS = 8  # up to steal time; later fields are contained in the first ones


class MachineBusy(Exception):
    """The processor was never idle."""


class ProcessorTimes(NamedTuple):
    """Seconds of all processors together since the machine's start."""

    busy: float
    total: float


def read_processor_times(path: Path = STAT) -> ProcessorTimes | None:
    """The processors' times; None if the system does not report them."""
    if not path.is_file():
        return None
    ticks = [int(field) for field in path.read_text(encoding="ascii").splitlines()[0].split()[1 : NUM_FIELDS + 1]]
    total, idle = sum(ticks), sum(ticks[place] for place in IDLE_FIELDS)
    ticks_per_second = os.sysconf("SC_CLK_TCK")
    return ProcessorTimes((total - idle) / ticks_per_second, total / ticks_per_second)


class IdleGate:
    """Lets a measurement begin. patience: the seconds that all measurements together may wait. goes_on: whether they
    begin anyway once it is used up."""

    def __init__(
        self,
        patience: float,
        goes_on: bool,
        read: Callable[[], ProcessorTimes | None] = read_processor_times,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._patience = patience
        self._goes_on = goes_on
        self.read, self._sleep = read, sleep
        self._waited = 0.0

    def wait(self) -> None:
        """Return once the machine is idle. Raises MachineBusy."""
        while (busy_share := self._sample()) > 1 - IDLE_SHARE:
            self._waited += SAMPLE_SECONDS
            if self._waited >= self._patience and self._goes_on:
                return
            if self._waited >= self._patience:
                raise MachineBusy(
                    f"other work took {busy_share:.0%} of the processor, and {self._patience:g} s of waiting for idle "
                    "moments are over; --busy measures all the same"
                )

    def _sample(self) -> float:
        """The share of all processors that is in use; 0 if the system does not report it."""
        before = self.read()
        self._sleep(SAMPLE_SECONDS)
        after = self.read()
        return 0.0 if before is None or after is None else _busy_share(before, after, 0.0)

    def others_since(self, before: ProcessorTimes | None, own_seconds: float) -> float | None:
        """The share of all processors that other processes took since `before`. own_seconds: what we took."""
        after = self.read()
        if before is None or after is None:
            return None
        return _busy_share(before, after, own_seconds)


def _busy_share(before: ProcessorTimes, after: ProcessorTimes, own_seconds: float) -> float:
    return max(0.0, after.busy - before.busy - own_seconds) / max(after.total - before.total, 1e-9)
