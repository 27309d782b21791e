"""The target's hidden features of each token, which a draft head reads, kept beside the token's keys and values.

Requests that reuse a block share its features, so they can draft after a prefix that they did not run.
Invariant: features read from a slot were written since its block was last given away.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from decoding.cache.block_pool import BLOCK_LEN, BlockPool
from decoding.cache.stamped import StampedSlots

# Shape suffixes: K tokens, E width.


class FeatureStore:
    """`width` numbers for each slot. On the CPU only written memory is touched."""

    def __init__(self, pool: BlockPool, width: int, dtype: torch.dtype, device: torch.device) -> None:
        num_slots = pool.num_blocks * BLOCK_LEN
        self._rows = torch.empty((num_slots, width), dtype=dtype, device=device)
        self._written = StampedSlots(pool)

    @staticmethod
    def bytes_per_slot(width: int, dtype: torch.dtype) -> int:
        """The bytes that one token takes."""
        return width * dtype.itemsize + 8

    def write(self, slots: NDArray[np.int64], rows_KE: torch.Tensor) -> None:
        """Keep one token's features in each of these slots."""
        self._rows[self._sent(slots)] = rows_KE
        self._written.note(slots)

    def num_known(self, slots: NDArray[np.int64]) -> int:
        """How many of the slots, counted from the first without a gap, have features."""
        return self._written.num_noted(slots)

    def read(self, slots: NDArray[np.int64]) -> torch.Tensor:
        """[K, E]: the features in the slots, all of which must have been written."""
        return self._rows[self._sent(slots)]

    def _sent(self, slots: NDArray[np.int64]) -> torch.Tensor:
        """On the device, without a wait for what it does."""
        return torch.from_numpy(slots).to(self._rows.device, non_blocking=True)
