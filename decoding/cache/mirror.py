"""Memory on both sides of a device's bus, which is kept from step to step.

Invariant: nothing is pinned or allocated unless more is wanted than ever before.
"""

from __future__ import annotations

from typing import Any

import torch
from numpy.typing import NDArray

FEWEST = 4096  # numbers that there is room for at first


def power_of_2(number: int) -> int:
    """The next one."""
    return 1 << (number - 1).bit_length()


class Mirror:
    """host: pinned for a CUDA device, also as `numbers`; device: as much there. They are replaced as they grow."""

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self._dtype, self._device, is_cuda = dtype, device, device.type == "cuda"
        self._sent = torch.cuda.Event() if is_cuda else None  # type: ignore[no-untyped-call]
        self._grow(FEWEST)

    def reserve(self, size: int) -> None:
        """Have room for so many numbers, whatever they were."""
        if size > len(self.host):
            self._grow(power_of_2(size))

    def begin(self, size: int) -> NDArray[Any]:
        """So many numbers to be filled and sent, once the last ones have left the host."""
        if self._sent is not None:
            self._sent.synchronize()
        self.reserve(size)
        return self.numbers[:size]

    def send(self, size: int) -> torch.Tensor:
        """Start to copy so many numbers to the device; where they are there."""
        there = self.device[:size]
        there.copy_(self.host[:size], non_blocking=True)
        if self._sent is not None:
            self._sent.record()
        return there

    def _grow(self, size: int) -> None:
        with torch.inference_mode(False):  # a forward may be the first to need it, and others write to it later
            self.host = torch.zeros(size, dtype=self._dtype, pin_memory=self._device.type == "cuda")
            self.device = torch.zeros(size, dtype=self._dtype, device=self._device)
        self.numbers: NDArray[Any] = self.host.numpy()
