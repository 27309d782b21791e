"""Drafting with a block head: one forward names what follows the last tokens of all sequences, and trees grow of that.

Owns the head's keys and values in the target's blocks. They are of features alone, so that they are made once for each
token, and whoever finds a token in the cache finds them too. Knows nothing of how a tree grows: growers do.
Invariant: a sequence's block is run once the target knows every token before its root.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

import numpy as np

from decoding.cache.block_pool import BLOCK_LEN, BlockPool
from decoding.cache.kv_store import KvStore, slots_of
from decoding.cache.stamped import StampedSlots
from decoding.core.request import Request
from decoding.core.top_tokens import TopTokens
from decoding.costs.price import DraftBudget
from decoding.drafting.block.block_model import BlockModel
from decoding.drafting.draft_model.state import LONG_READ, DraftModelState, Fallback, GrowthRequest, KeptTokens
from decoding.drafting.eagle.kept_features import FeatureRows, KeptFeatures
from decoding.sampling.top_tokens import top_tokens
from decoding.stores.successor_table import NUM_SUCCESSORS

MOST_ROWS = 1 << 16  # of a tree: they are looked up
NAN = Fallback("nan", "the head gave numbers that are not finite")


class BlockDrafting:
    """pool: of the target's blocks."""

    def __init__(self, model: BlockModel, pool: BlockPool) -> None:
        self.model = model
        self.store: KvStore = model.new_store(pool.num_blocks)
        self._kept = KeptFeatures(pool, model.features, self._read)
        self._is_read = StampedSlots(pool)

    def open(self, request: Request) -> DraftModelState:
        """What is kept of a new sequence."""
        vocab_size, block_len = self.model.vocab_size, self.model.block_len
        return DraftModelState(request, self.store, vocab_size, reads_tokens_alone=False, block_len=block_len)

    @property
    def num_bytes(self) -> int:
        """Of the weights and of its part of all slots."""
        return self.model.num_bytes + self.store.num_blocks * BLOCK_LEN * self.model.bytes_per_slot

    def keep_features(self, kept: Iterable[KeptTokens]) -> None:
        """Keep what the target's last forward computed of these tokens."""
        self._kept.keep(kept)

    def grow_batch(self, requests: Sequence[GrowthRequest]) -> dict[DraftModelState, Fallback]:
        """Grow the trees of the sequences that have a budget, of one packed forward; which ones it can do no more
        for."""
        self._kept.flush()
        asked = [(each, each.budget) for each in requests if each.budget is not None and self._is_ready(each)]
        if not asked:
            return {}
        started = time.perf_counter()
        tops = self._name([request for request, _ in asked])
        seconds, fallbacks = (time.perf_counter() - started) / len(asked), {}
        for (request, budget), top in zip(asked, tops, strict=True):
            request.state.note_forward(seconds, min(self.model.block_len, LONG_READ))
            if not self._grow(request.state, budget, top):
                fallbacks[request.state] = NAN
        return fallbacks

    def _grow(self, state: DraftModelState, budget: DraftBudget, top: TopTokens) -> bool:
        """Whether what was named are numbers."""
        if not np.isfinite(top.probabilities).all():
            return False
        if state.grower is not None:
            state.grower.begin(budget, MOST_ROWS, len(top) - 1)
            state.grower.grow(top)
        return True

    def _name(self, requests: Sequence[GrowthRequest]) -> list[TopTokens]:
        """Of each sequence what follows each depth."""
        blocks = [
            self.model.block(int(each.state.request.tokens[each.end - 1]), each.table.blocks, each.end - 1)
            for each in requests
        ]
        top = top_tokens(self.model.name(blocks, self.store), NUM_SUCCESSORS)
        num_places = self.model.block_len - 1
        return [top.rows(place * num_places, (place + 1) * num_places) for place in range(len(blocks))]

    def _is_ready(self, request: GrowthRequest) -> bool:
        """Whether there are tokens before its root, and all were read: the length of its rows says which were."""
        rows, last = request.state.rows_in(request.table), request.end - 1
        rows.length += self._is_read.num_noted(slots_of(request.table.blocks, np.arange(rows.length, last)))
        return rows.length == last > 0

    def _read(self, rows: FeatureRows) -> None:
        self.model.read(rows, self.store)
        self._is_read.note(rows.slots)
