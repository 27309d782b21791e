"""Which sampler answers a step: where the logits are if it can, else on the host. The engine does not ask which."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

from decoding.sampling.asked import Asked, Drawn
from decoding.sampling.device.availability import has_kernels
from decoding.sampling.host_sampler import HostSampler


class Drawing(Protocol):
    """A step's answers, maybe still to be computed."""

    def collect(self, place: int, /) -> Drawn:
        """What the sequence in this place is told. Raises BrokenSequence, for that sequence alone."""
        ...


class StepSampler(Protocol):
    def launch(self, logits_RV: torch.Tensor, asked: Sequence[Asked], /) -> Drawing:
        """Begin with all that is asked of a step's raw logits, float32 and contiguous, without waiting for them."""
        ...


def sampler_on(device: torch.device) -> StepSampler:
    """Without Triton the logits are copied to the host."""
    if not has_kernels(device):
        return HostSampler()
    from decoding.sampling.device.device_sampler import DeviceSampler

    return DeviceSampler()
