"""Chooses a step's sampler: on the device of the logits if it has kernels, else on the host. Both look alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

from decoding.kernels.gpu.card import has_kernels
from decoding.sampling.asked import Asked, Drawn
from decoding.sampling.sampler import HostSampler


class Drawing(Protocol):
    """A step's answers, which may still be in computation."""

    def collect(self, place: int, /) -> Drawn:
        """The answer for the sequence at this place. Raises BrokenSequence, for that sequence alone."""
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
