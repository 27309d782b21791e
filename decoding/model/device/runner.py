"""The protocol of whatever runs forwards: a model, operation by operation, or a runner that replays captured ones.

Invariant: a launch does not wait for the device; only reading a result does.
"""

from __future__ import annotations

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
