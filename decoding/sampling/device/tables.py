"""A plan's tables as one block of memory on both sides, which is kept for the next step.

Invariant: nothing is pinned or allocated unless a step is larger than all before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch

from decoding.cache.mirror import Mirror
from decoding.sampling.device.plan import JOB_WORDS, Plan, Words, fill_draws

TABLES = ("jobs", "trees", "nodes", "ranked", "scored", "edited", "changes", "changes_after", "entries", "masks")


class Tables:
    """A plan's tables, in one block on the device. Each begins at a multiple of 16 bytes, whatever is before it:
    kernels are compiled anew for addresses of another alignment."""

    def __init__(self, device: torch.device) -> None:
        self._block = Mirror(torch.int64, device)
        self._parts: dict[str, tuple[int, int]] = {}

    def send(self, plan: Plan) -> None:
        """Fill them, and start their copy."""
        sizes = (
            JOB_WORDS * plan.num_jobs, 3 * len(plan.walks_TX), 2 * plan.num_nodes, len(plan.ranked),
            2 * len(plan.scored), 2 * len(plan.edited), _num_words(plan.changes), _num_words(plan.changes_after),
            3 * plan.num_entries, -(-plan.num_mask_words // 2),
        )  # fmt: skip
        place = 0
        for name, size in zip(TABLES, sizes, strict=True):
            self._parts[name] = place, place + size
            place += size + size % 2
        self._block.begin(place)
        self._fill(plan)
        self._block.send(place)

    def _fill(self, plan: Plan) -> None:
        jobs = self._numbers("jobs")
        if len(plan.walks_TX):
            trees = plan.walks_TX, plan.tokens_N, plan.parents_N
            fill_draws(*trees, self._numbers("trees"), self._numbers("nodes"), jobs)
        _join(plan.jobs, jobs[JOB_WORDS * plan.num_nodes :])
        if plan.ranked:
            self._numbers("ranked")[:] = plan.ranked
        _join(plan.scored, self._numbers("scored"))
        _join(plan.edited, self._numbers("edited"))
        _join(plan.changes, self._numbers("changes"))
        _join(plan.changes_after, self._numbers("changes_after"))
        _join(plan.entries, self._numbers("entries"))
        if plan.masks:
            bits = np.concatenate([*plan.masks, np.zeros(plan.num_mask_words % 2, np.uint32)])  # whole int64
            self._numbers("masks")[:] = bits.view(np.int64)

    def _numbers(self, name: str) -> Words:
        start, end = self._parts[name]
        return self._block.numbers[start:end]

    def words(self, name: str) -> torch.Tensor:
        """int64: one table."""
        start, end = self._parts[name]
        return self._block.device[start:end]

    def both(self, name: str) -> tuple[torch.Tensor, torch.Tensor]:
        """One table's memory, as int64 and as float64."""
        words = self.words(name)
        return words, words.view(torch.float64)

    def bits(self) -> torch.Tensor:
        """int32: the masks' bits."""
        return self.words("masks").view(torch.int32)


def _num_words(records: Iterable[Words]) -> int:
    return sum(record.size for record in records)


def _join(records: Sequence[Any], words: Words) -> None:
    """Write them one after the other."""
    if records:
        np.concatenate([np.ravel(record) for record in records], out=words)
