"""Owns the plan of a run: the number of steps, and the row length and learning rate at each step.

Does not know models or data. Invariant: until the decay starts nothing depends on `num_steps`, so a run can be
extended.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Stage:
    """The settings from a step on: tokens in a row, tokens in a step, and the share of the plan's rates."""

    first_step: int
    row_len: int
    tokens_per_step: int
    rate_share: float = 1.0


@dataclass(frozen=True)
class Plan:
    """Warm-up, a stable stretch in stages, then a linear decay to `final_share` of the rates.

    `learns_from_target_at` is the step from which a draft model learns the target's probabilities instead of the text.
    """

    num_steps: int
    stages: tuple[Stage, ...]
    warm_up_steps: int = 60
    decay_steps: int = 500
    matrix_rate: float = 1e-2
    embedding_rate: float = 6e-3
    weight_decay: float = 0.02
    final_share: float = 0.0
    learns_from_target_at: int | None = None

    def __post_init__(self) -> None:
        assert self.stages[0].first_step == 0, self.stages

    def stage(self, step: int) -> Stage:
        """The stage that a step belongs to."""
        return [stage for stage in self.stages if stage.first_step <= step][-1]

    def rate_factor(self, step: int) -> float:
        """The share of the full rates at a step, from 0 to 1."""
        warm_up = min(1.0, (step + 1) / self.warm_up_steps)
        left = min(1.0, max(0.0, (self.num_steps - step) / self.decay_steps))
        decay = self.final_share + (1 - self.final_share) * left
        return warm_up * decay * self.stage(step).rate_share

    def is_learning_from_target(self, step: int) -> bool:
        """Whether the step learns the target's probabilities."""
        return self.learns_from_target_at is not None and step >= self.learns_from_target_at
