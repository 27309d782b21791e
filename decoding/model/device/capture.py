"""Captures the operations that a forward queues on a device, to replay all of them in one call.

Knows nothing of models. Invariant: a replay reads and writes the same tensors as the captured forward.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch

Launch = Callable[[], None]


class Capture(Protocol):
    """Captures all forwards of one model."""

    def note(self, launch: Launch) -> Launch:
        """Run `launch`, which must not copy a number to the host, and return a function that replays it."""
        ...

    def reserved_bytes(self) -> int:
        """The device memory that this process has reserved."""
        ...


class CudaCapture:
    """CUDA graphs in one shared memory pool: a replay overwrites the results of the replay before."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._pool = torch.cuda.graph_pool_handle()

    def note(self, launch: Launch) -> Launch:
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            launch()  # compiles, tunes and allocates now, which must not happen during the capture
        self._stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        # "thread_local": other threads, which may be compiling, may use CUDA meanwhile.
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
            launch()
        return graph.replay

    def reserved_bytes(self) -> int:
        return torch.cuda.memory_reserved(self._device)


def capture_on(device: torch.device) -> Capture | None:
    """A capture for the device; None if forwards cannot be captured there."""
    return CudaCapture(device) if device.type == "cuda" else None
