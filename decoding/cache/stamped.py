"""Marks on slots and blocks that become invalid when the block is given to a new holder.

Invariant: a valid mark was set since the block was last given away.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from decoding.cache.block_pool import BLOCK_LEN, BlockPool


class StampedSlots:
    """Marks slots that have data stored beside them."""

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self._stamps = np.zeros(pool.num_blocks * BLOCK_LEN, np.int64)  # the block's stamp when the slot was marked

    def note(self, slots: NDArray[np.int64]) -> None:
        """Mark these slots."""
        self._stamps[slots] = self._pool.stamps[slots // BLOCK_LEN]

    def are_noted(self, slots: NDArray[np.int64]) -> NDArray[np.bool_]:
        """bool, one for each slot: whether its mark is valid."""
        noted: NDArray[np.bool_] = self._stamps[slots] == self._pool.stamps[slots // BLOCK_LEN]
        return noted

    def num_noted(self, slots: NDArray[np.int64]) -> int:
        """How many of these slots, counted from the first without a gap, have valid marks."""
        are_noted = self.are_noted(slots)
        return len(slots) if are_noted.all() else int(np.argmin(are_noted))


class FilledBlocks:
    """Marks the blocks that a model has filled completely, for a model that may lag behind the target."""

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self._stamps = np.zeros(pool.num_blocks, np.int64)  # the block's stamp when it was filled

    def note(self, blocks: NDArray[Any]) -> None:
        """Mark these blocks as filled."""
        self._stamps[blocks] = self._pool.stamps[blocks]

    def __contains__(self, block: int) -> bool:
        return bool(self._stamps[block] == self._pool.stamps[block])
