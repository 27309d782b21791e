"""The protocol of whatever runs forwards: a model, operation by operation, or a runner that replays captured ones; and
how a forward's seconds are measured: on the host with the clock, on a CUDA device with events in its queue.

Invariant: a launch does not wait for the device; only reading a result or its seconds does.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple, Protocol

import torch

from decoding.cache.batch import StepBatch

Progress = Callable[[str, float], None]  # reports start-up work: a sentence and the fraction that is done


def silent(_sentence: str, _fraction: float) -> None:
    """A `Progress` that reports nothing."""


class Forward(NamedTuple):
    """logits_RV: float32, of the step's tokens `logit_rows_R`; valid until the runner's next forward."""

    logits_RV: torch.Tensor
    seconds: Callable[[], float]


class Runner(Protocol):
    """Runs the forwards of an engine's steps."""

    def launch(self, batch: StepBatch) -> Forward:
        """Run a step's forward, or queue it on the device. It stores all tokens' keys and values."""
        ...


class Stopwatch(Protocol):
    """Starts when it is created."""

    def stop(self) -> None: ...

    def seconds(self) -> float:
        """The seconds between start and stop. Waits until the device has reached the stop."""
        ...


class HostStopwatch:
    """Measures work that runs while its caller waits."""

    __slots__ = ("_seconds", "_started")

    def __init__(self) -> None:
        self._started = time.perf_counter()

    def stop(self) -> None:
        self._seconds = time.perf_counter() - self._started

    def seconds(self) -> float:
        return self._seconds


class CudaStopwatch:
    """Measures work that is queued on the current stream."""

    def __init__(self) -> None:
        self._start, self._end = _event(), _event()
        self._start.record()

    def stop(self) -> None:
        self._end.record()

    def seconds(self) -> float:
        self._end.synchronize()
        return float(self._start.elapsed_time(self._end)) / 1000


def stopwatch_on(device: torch.device) -> type[HostStopwatch] | type[CudaStopwatch]:
    """The stopwatch for forwards on the device."""
    return CudaStopwatch if device.type == "cuda" else HostStopwatch


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
