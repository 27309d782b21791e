"""What still holds of things noted beside blocks: whether a block was given away since.

Invariant: what counts as noted was noted since the block was last given away.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from decoding.cache.block_pool import BLOCK_LEN, BlockPool


class StampedSlots:
    """Which slots have something noted beside them."""

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self._stamps = np.zeros(pool.num_blocks * BLOCK_LEN, np.int64)  # of the block when the slot was noted

    def note(self, slots: NDArray[np.int64]) -> None:
        """Something is noted beside these slots from now on."""
        self._stamps[slots] = self._pool.stamps[slots // BLOCK_LEN]

    def are_noted(self, slots: NDArray[np.int64]) -> NDArray[np.bool_]:
        """bool, one for each slot."""
        noted: NDArray[np.bool_] = self._stamps[slots] == self._pool.stamps[slots // BLOCK_LEN]
        return noted


class FilledBlocks:
    """Which blocks hold all rows of a model that may lag behind the target."""

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self._stamps = np.zeros(pool.num_blocks, np.int64)  # of the block when it was filled

    def note(self, blocks: NDArray[Any]) -> None:
        """These blocks are filled from now on."""
        self._stamps[blocks] = self._pool.stamps[blocks]

    def __contains__(self, block: int) -> bool:
        return bool(self._stamps[block] == self._pool.stamps[block])
