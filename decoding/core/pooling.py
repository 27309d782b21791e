"""How a prompt's hidden states become one vector, its embedding: their mean, or the last of them. Pure.

Invariant: rows are added one after the other in float64, so that a vector's bits do not depend on the chunks in which a
prompt was run.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

Pooling = Literal["mean", "last"]

# Shape suffixes: K tokens, E model width.


class PooledRows:
    """Of one prompt, whose tokens' rows are added in order. reads_all: of all tokens, and not of the last alone."""

    def __init__(self, pooling: Pooling) -> None:
        self.reads_all = pooling == "mean"
        self.clear()

    def clear(self) -> None:
        """The prompt is run anew."""
        self._total_E: NDArray[np.float64] | None = None
        self._count = 0

    def add(self, rows_KE: NDArray[np.float32]) -> None:
        for row_E in rows_KE.astype(np.float64):
            if self._total_E is None or not self.reads_all:
                self._total_E, self._count = row_E, 1
            else:
                self._total_E += row_E
                self._count += 1

    def vector(self) -> bytes:
        """float32 [E], little-endian."""
        assert self._total_E is not None
        return (self._total_E / self._count).astype("<f4").tobytes()
