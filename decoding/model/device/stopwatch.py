"""How long a forward took: on the host by the clock, on a CUDA device by events in its queue.

Invariant: starting and stopping never wait; only who asks for the seconds does.
"""

from __future__ import annotations

import time
from typing import Protocol

import torch


class Stopwatch(Protocol):
    """Started when it is made."""

    def stop(self) -> None: ...

    def seconds(self) -> float:
        """Between start and stop. Waits for a device to have come to the stop."""
        ...


class HostStopwatch:
    """Of what runs while its caller waits."""

    __slots__ = ("_seconds", "_started")

    def __init__(self) -> None:
        self._started = time.perf_counter()

    def stop(self) -> None:
        self._seconds = time.perf_counter() - self._started

    def seconds(self) -> float:
        return self._seconds


class CudaStopwatch:
    """Of what is queued on the present stream."""

    def __init__(self) -> None:
        self._start, self._end = _event(), _event()
        self._start.record()

    def stop(self) -> None:
        self._end.record()

    def seconds(self) -> float:
        self._end.synchronize()
        return float(self._start.elapsed_time(self._end)) / 1000


def stopwatch_on(device: torch.device) -> type[HostStopwatch] | type[CudaStopwatch]:
    """What times forwards there."""
    return CudaStopwatch if device.type == "cuda" else HostStopwatch


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
