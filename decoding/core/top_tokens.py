"""The target's most likely tokens after each row of a step: what stores harvest. Pure data, on the host."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class TopTokens:
    """The target's k most likely tokens after each row of a step, already on the host.

    ids: int32 [n, k], most likely first; probabilities: float32 [n, k] at temperature 1, over the
    whole vocabulary and before any filter.
    """

    ids: NDArray[np.int32]
    probabilities: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.ids)

    def rows(self, first: int, end: int) -> TopTokens:
        """Of some of the rows."""
        return TopTokens(self.ids[first:end], self.probabilities[first:end])

    def likeliest(self, num_top: int) -> TopTokens:
        """Fewer of each row."""
        return TopTokens(self.ids[:, :num_top], self.probabilities[:, :num_top])
