"""The target's most likely next tokens at each prompt token, kept beside the token's keys and values.

A request that reuses a block gets no logits for its tokens, so its stores learn from those of the request that ran
them. Invariant: tokens read from a slot were written since its block was last given away.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from decoding.cache.block_pool import BLOCK_LEN, BlockPool
from decoding.cache.stamped import StampedSlots
from decoding.core.top_tokens import TopTokens


class TopTokenStore:
    """num_top: k of `TopTokens`. Only written memory is touched."""

    def __init__(self, pool: BlockPool, num_top: int) -> None:
        num_slots = pool.num_blocks * BLOCK_LEN
        self._ids = np.empty((num_slots, num_top), np.int32)
        self._probabilities = np.empty((num_slots, num_top), np.float32)
        self._written = StampedSlots(pool)

    @staticmethod
    def bytes_per_slot(num_top: int) -> int:
        """The bytes that one token takes."""
        return 8 * num_top + 8

    def write(self, slots: NDArray[np.int64], top: TopTokens) -> None:
        """Keep the top tokens of these slots, unless `top` has another number of them than `num_top`."""
        if top.ids.shape[1] == self._ids.shape[1]:
            self._ids[slots], self._probabilities[slots] = top.ids, top.probabilities
            self._written.note(slots)

    def read(self, slots: NDArray[np.int64]) -> list[tuple[int, TopTokens]]:
        """The runs of slots that were written: the place in `slots` where a run starts, and its top tokens."""
        is_known = self._written.are_noted(slots)
        borders = np.flatnonzero(np.diff(np.concatenate(([False], is_known, [False])))).reshape(-1, 2)
        return [
            (first, TopTokens(self._ids[slots[first:end]], self._probabilities[slots[first:end]]))
            for first, end in borders.tolist()
        ]
