"""A step on its way through the device: what was launched, and what is needed once it is through. Pure data."""

from __future__ import annotations

from dataclasses import dataclass, replace

from decoding.cache.batch import StepBatch
from decoding.engine.scheduler import Reuse
from decoding.engine.sequence_step import SequenceStep
from decoding.model.device.runner import Forward
from decoding.sampling.step_sampler import Drawing


@dataclass(frozen=True, slots=True)
class LaunchedStep:
    """steps: of those who still run. reuse: of the prompts that it began."""

    steps: list[SequenceStep]
    batch: StepBatch
    forward: Forward
    drawing: Drawing
    reuse: Reuse

    def of_running(self) -> LaunchedStep | None:
        """The same of the steps whose sequences have not ended since; None if there are none."""
        steps = [step for step in self.steps if step.sequence.rows is not None]
        return self if len(steps) == len(self.steps) else replace(self, steps=steps) if steps else None
