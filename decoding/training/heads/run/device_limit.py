"""What this device can do at most, as its own largest product and copy show, and how near to that a part of a run came.

Invariant: multiplications and bytes are counted, never guessed from a processor's name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

Clock = Callable[[], float]
WIDTHS = {"cpu": 1024, "cuda": 8192}  # of a square product that reaches a device's rate
COPIED = {"cpu": 2**26, "cuda": 2**30}  # bytes
TIMES = 5


@dataclass(frozen=True, slots=True)
class DeviceLimit:
    """products: multiplications and additions a second; num_bytes: read and written a second."""

    products: float
    num_bytes: float

    def share(self, products: float, num_bytes: float, seconds: float) -> float:
        """How much of its time the device would need for so much work: the slower of the two bounds."""
        return max(products / self.products, num_bytes / self.num_bytes) / max(seconds, 1e-9)


def measure_limit(device: torch.device, dtype: torch.dtype, now: Clock) -> DeviceLimit:
    """The best of a few trials."""
    width, size = WIDTHS[device.type], COPIED[device.type]
    square, buffer = torch.ones(width, width, dtype=dtype, device=device), torch.ones(size // 4, device=device)
    into = torch.empty_like(buffer)
    products = _quickest(lambda: square @ square, device, now)
    copying = _quickest(lambda: into.copy_(buffer), device, now)
    return DeviceLimit(width**3 / products, 2 * size / copying)


def _quickest(work: Callable[[], object], device: torch.device, now: Clock) -> float:
    seconds = []
    for _ in range(TIMES):
        _wait(device)
        started = now()
        work()
        _wait(device)
        seconds.append(now() - started)
    return max(min(seconds), 1e-9)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
