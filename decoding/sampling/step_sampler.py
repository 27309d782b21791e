"""Chooses a step's sampler: on the device of the logits if it has kernels, else on the host. Both look alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from decoding.kernels.gpu.card import has_kernels
from decoding.sampling.asked import Asked, Drawn
from decoding.sampling.sampler import HostSampler


class Drawing(Protocol):
    """A step's answers, which may still be in computation."""

    def collect(self, place: int, /) -> Drawn:
        """The answer for the sequence at this place. Raises BrokenSequence, for that sequence alone."""
        ...

    @property
    def roots(self) -> RootsDrawing | None:
        """The same where each sequence draws one token, on a device; else None."""
        ...


class RootsDrawing(Drawing, Protocol):
    """A token of each sequence, drawn on a device from one row. The drawing after the next overwrites it there."""

    @property
    def tokens_B(self) -> torch.Tensor:
        """int32, on the device: what is drawn for each sequence, negative where nothing can be."""
        ...

    def follow(self, logits_RV: torch.Tensor, places_B: NDArray[np.int64], /) -> Drawing:
        """Start to draw the tokens after these: of the sequences at these places, each from its row of `logits_RV`,
        by the same law, a position further on. What remains to be collected here needs no logits."""
        ...


class StepSampler(Protocol):
    def launch(self, logits_RV: torch.Tensor, asked: Sequence[Asked], /) -> Drawing:
        """Start to answer all sequences from a step's raw logits, float32 and contiguous, without waiting for them."""
        ...

    def warm_up(self, logits_RV: torch.Tensor, /) -> None:
        """Compile what any step of such logits may call, trees of up to R nodes included."""
        ...


def sampler_on(device: torch.device) -> StepSampler:
    """The sampler for logits on this device. Without Triton they are copied to the host."""
    if not has_kernels(device):
        return HostSampler()
    from decoding.sampling.device.device_sampler import DeviceSampler

    return DeviceSampler()
