"""What the target computed of each token, as a draft head reads it, beside the token's keys and values.

Kept for all who share a block, so that who finds a prompt's beginning can draft after it.
Invariant: what is read of a slot was written since its block was last given away.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from decoding.cache.block_pool import BLOCK_LEN, BlockPool
from decoding.cache.stamped import StampedSlots

# Shape suffixes: K rows, E width.


class FeatureStore:
    """A row of `width` numbers for each slot. On the CPU memory is touched where it is written only."""

    def __init__(self, pool: BlockPool, width: int, dtype: torch.dtype, device: torch.device) -> None:
        num_slots = pool.num_blocks * BLOCK_LEN
        self._rows = torch.empty((num_slots, width), dtype=dtype, device=device)
        self._written = StampedSlots(pool)

    @staticmethod
    def bytes_per_slot(width: int, dtype: torch.dtype) -> int:
        """Of what is kept of one row."""
        return width * dtype.itemsize + 8

    def write(self, slots: NDArray[np.int64], rows_KE: torch.Tensor) -> None:
        """Keep a row in each of these slots."""
        self._rows[torch.from_numpy(slots).to(self._rows.device)] = rows_KE
        self._written.note(slots)

    def num_known(self, slots: NDArray[np.int64]) -> int:
        """How many of the slots, from the first on, have a row."""
        is_known = self._written.are_noted(slots)
        return len(slots) if is_known.all() else int(np.argmin(is_known))

    def read(self, slots: NDArray[np.int64]) -> torch.Tensor:
        """[K, E] of slots that have a row."""
        return self._rows[torch.from_numpy(slots).to(self._rows.device)]
