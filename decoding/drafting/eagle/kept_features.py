"""What the target computed of tokens that stay, until a head reads it: many rows at once, since each reading fetches
the weights.

Invariant: what is read lies in blocks that were not given to somebody else meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from decoding.cache.block_pool import BLOCK_LEN, BlockPool
from decoding.drafting.draft_model.state import KeptTokens

# Shape suffixes: K tokens, F all features of a token.
READ_TOGETHER = 64  # tokens: a step that drafts without the head then need not fetch its weights


class FeatureRows(NamedTuple):
    """slots, positions: int64 [K], where the tokens lie in the cache and in their sequences."""

    slots: NDArray[np.int64]
    positions: NDArray[np.int64]
    features_KF: torch.Tensor


class KeptFeatures:
    """features: of rows of the target's last forward; read: takes in what was kept."""

    def __init__(
        self,
        pool: BlockPool,
        features: Callable[[torch.Tensor], torch.Tensor],
        read: Callable[[FeatureRows], None],
    ) -> None:
        self._pool, self._features, self._read = pool, features, read
        self._waiting: list[tuple[NDArray[np.int64], FeatureRows]] = []  # with the stamps of their blocks

    def keep(self, kept: Iterable[KeptTokens]) -> None:
        """Keep what the target's last forward computed of these tokens."""
        found = list(kept)
        if not found:
            return
        rows, slots, positions = map(np.concatenate, zip(*found, strict=True))
        features_KF = self._features(torch.from_numpy(rows))
        self._waiting.append((self._pool.stamps[slots // BLOCK_LEN], FeatureRows(slots, positions, features_KF)))
        if sum(len(each.slots) for _, each in self._waiting) >= READ_TOGETHER:
            self.flush()

    def flush(self) -> None:
        """Let what was kept be read, but for tokens whose block somebody else has been given since."""
        if not self._waiting:
            return
        stamps, waiting = zip(*self._waiting, strict=True)
        self._waiting.clear()
        slots, positions, features = zip(*waiting, strict=True)
        slots_K, positions_K, features_KF = np.concatenate(slots), np.concatenate(positions), torch.cat(features)
        is_held = self._pool.stamps[slots_K // BLOCK_LEN] == np.concatenate(stamps)
        if not is_held.all():
            slots_K, positions_K = slots_K[is_held], positions_K[is_held]
            held_K = torch.from_numpy(np.flatnonzero(is_held))
            features_KF = features_KF[held_K.to(features_KF.device, non_blocking=True)]
        if len(slots_K):
            self._read(FeatureRows(slots_K, positions_K, features_KF))
