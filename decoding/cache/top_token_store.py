"""The target's top tokens after the rows of prompts, kept beside their keys and values, for those who find the block.

A row that need not be run gives no logits: who shares it learns from what the run said that made it.
Invariant: what is read of a slot was written since its block was last given away.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from decoding.cache.block_pool import BLOCK_LEN, BlockPool
from decoding.cache.stamped import StampedSlots
from decoding.core.top_tokens import TopTokens


class TopTokenStore:
    """num_top: k of `TopTokens`. Memory is touched where it is written only."""

    def __init__(self, pool: BlockPool, num_top: int) -> None:
        num_slots = pool.num_blocks * BLOCK_LEN
        self._ids = np.empty((num_slots, num_top), np.int32)
        self._probabilities = np.empty((num_slots, num_top), np.float32)
        self._written = StampedSlots(pool)

    @staticmethod
    def bytes_per_slot(num_top: int) -> int:
        """Of what is kept of one row."""
        return 8 * num_top + 8

    def write(self, slots: NDArray[np.int64], top: TopTokens) -> None:
        """Keep what follows the rows in these slots; fewer than k tokens of each are not kept."""
        if top.ids.shape[1] == self._ids.shape[1]:
            self._ids[slots], self._probabilities[slots] = top.ids, top.probabilities
            self._written.note(slots)

    def read(self, slots: NDArray[np.int64]) -> list[tuple[int, TopTokens]]:
        """Runs of rows of which something is kept: the place in `slots` of the first one, and what follows each."""
        is_known = self._written.are_noted(slots)
        borders = np.flatnonzero(np.diff(np.concatenate(([False], is_known, [False])))).reshape(-1, 2)
        return [
            (first, TopTokens(self._ids[slots[first:end]], self._probabilities[slots[first:end]]))
            for first, end in borders.tolist()
        ]
