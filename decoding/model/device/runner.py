"""What runs a model's forwards: each operation as it comes, as a model itself does, or captured ones by replaying them.

Knows packed steps. Invariant: a launch waits for nothing; whoever needs a number of it waits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

import torch

from decoding.cache.batch import StepBatch
from decoding.model.device.stopwatch import Stopwatch

Progress = Callable[[str, float], None]  # told of start-up work: a sentence and a fraction


def silent(_sentence: str, _fraction: float) -> None:
    """Progress that nobody wants to hear of."""


class Forward(NamedTuple):
    """logits_RV: float32, of the rows `logit_rows_R` of the step; there until the runner's next forward."""

    logits_RV: torch.Tensor
    stopwatch: Stopwatch


class Runner(Protocol):
    """What an engine steps with."""

    def launch(self, batch: StepBatch) -> Forward:
        """Run a step's forward, or queue it on the device. Stores all rows' keys and values."""
        ...
