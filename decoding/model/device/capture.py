"""Noting down what a forward queues, to queue all of it again at once.

Knows nothing of models. Invariant: a replay reads and writes the tensors that were there when it was noted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch

Launch = Callable[[], None]


class Capture(Protocol):
    """One for all forwards of a model."""

    def note(self, launch: Launch) -> Launch:
        """What queues again whatever `launch` queues. Runs `launch`, which must read no number back to the host."""
        ...

    def reserved_bytes(self) -> int:
        """Memory of the device that this process has by now."""
        ...


class CudaCapture:
    """CUDA graphs that share their memory: of all, only what one replay leaves behind is there at a time."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._pool = torch.cuda.graph_pool_handle()

    def note(self, launch: Launch) -> Launch:
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            launch()  # so that nothing is compiled, tuned or first allocated while it is noted
        self._stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        # Other threads, which may be compiling, go on as they like.
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
            launch()
        return graph.replay

    def reserved_bytes(self) -> int:
        return torch.cuda.memory_reserved(self._device)


def capture_on(device: torch.device) -> Capture | None:
    """What notes forwards there; None where only running them will do."""
    return CudaCapture(device) if device.type == "cuda" else None
