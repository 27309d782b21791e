"""What verification says of a draft tree. Pure data."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from decoding.core.tree import IntArray

ROOT_PATH: IntArray = np.zeros(1, np.int32)


@dataclass(frozen=True, slots=True)
class Verdict:
    """path: int32 [a+1], the accepted nodes from the root (always node 0) downwards.

    tokens: int32 [a+1], the tokens to emit: the accepted nodes' tokens, then the bonus token.
    """

    path: IntArray
    tokens: IntArray

    @property
    def num_accepted(self) -> int:
        return len(self.path) - 1
