"""Captures the operations that a forward queues on a device, to replay all of them in one call.

Knows nothing of models. Invariant: a replay reads and writes the same tensors as the captured forward.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

import torch

from decoding.errors import ModelRefused
from decoding.model.refusal import is_device_error, sentence

Launch = Callable[[], None]


class Capture(Protocol):
    """Captures all forwards of one model."""

    def note(self, launch: Launch) -> Launch:
        """Run `launch`, which must not copy a number to the host, and return a function that replays it. Raises
        ModelRefused if it does; what else goes wrong on the device is raised as it is."""
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
        graph, before = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
        try:
            # "thread_local": other threads, which may be compiling, may use CUDA meanwhile.
            with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
                launch()
        except RuntimeError as error:
            torch.cuda.set_stream(before)  # torch leaves neither its stream nor its pool where the capture cannot end
            with suppress(RuntimeError):
                torch._C._cuda_endAllocateToPool(before.device_index, self._pool)
            if not is_of_capture(error):
                raise
            raise ModelRefused(f"a forward cannot be captured: {sentence(error)}") from error
        return graph.replay

    def reserved_bytes(self) -> int:
        return torch.cuda.memory_reserved(self._device)


def is_of_capture(error: RuntimeError) -> bool:
    """Whether an error says that an operation cannot be captured, and not that the device or its memory fails."""
    return not is_device_error(error) or "captur" in str(error)


def capture_on(device: torch.device) -> Capture | None:
    """A capture for the device; None if forwards cannot be captured there."""
    return CudaCapture(device) if device.type == "cuda" else None
