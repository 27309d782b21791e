"""What a GPU's exact products cost beside others, as a start has measured it."""

from __future__ import annotations

import msgspec

MOST_COST = 1.15  # up to which they are used without being asked for


class ExactCost(msgspec.Struct, frozen=True):
    """The time of exact products as a share of the time of others: of a step of 64 tokens, and of a prompt's tokens."""

    step: float
    prompt: float

    @property
    def is_small(self) -> bool:
        return max(self.step, self.prompt) <= MOST_COST

    def __str__(self) -> str:
        return f"products take {self.step:.2f} of the time in steps of 64 tokens, {self.prompt:.2f} in prompts"
