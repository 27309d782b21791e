"""The target's most likely next tokens at each token of a step, which the stores learn from. Pure data, on the host."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class TopTokens:
    """The target's k most likely next tokens at each of n tokens of a step.

    ids: int32 [n, k], most likely first; probabilities: float32 [n, k] at temperature 1, over the
    whole vocabulary and before any filter.
    """

    ids: NDArray[np.int32]
    probabilities: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.ids)

    def rows(self, first: int, end: int) -> TopTokens:
        """The part for the tokens from `first` up to `end`."""
        return TopTokens(self.ids[first:end], self.probabilities[first:end])

    def likeliest(self, num_top: int) -> TopTokens:
        """The `num_top` most likely of each row."""
        return TopTokens(self.ids[:, :num_top], self.probabilities[:, :num_top])
