"""Drafting with a block head: one forward names what follows the last tokens of all sequences, and trees grow of that.

Owns the head's keys and values in the target's blocks. They are of features alone, so that they are made once for each
token, and whoever finds a token in the cache finds them too. Knows nothing of how a tree grows: growers do.
Invariant: a sequence's block is run once the target knows every token before its root.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from decoding.cache.block_pool import BlockPool
from decoding.cache.kv_store import KvStore, slots_of
from decoding.cache.stamped import StampedSlots
from decoding.core.request import Request
from decoding.core.top_tokens import TopTokens
from decoding.core.tree import IntArray
from decoding.costs.price import DraftBudget
from decoding.drafting.block.block_model import BlockModel
from decoding.drafting.block.block_step import Block
from decoding.drafting.block.network import Correction
from decoding.drafting.block.shortlist import Shortlist
from decoding.drafting.draft_model.state import (
    LONG_READ,
    DraftModelState,
    Fallback,
    Grower,
    GrowthRequest,
)
from decoding.drafting.eagle.kept_features import FeatureRows, KeptFeatures
from decoding.sampling.top_tokens import top_tokens
from decoding.stores.successor_table import NUM_SUCCESSORS

MOST_ROWS = 1 << 16  # of a tree: they are looked up
NAN = Fallback("nan", "the head gave numbers that are not finite")


class Growth:
    """One sequence's tree under way. grower: the sequence's. wanted: of the rows that are asked for next their depths,
    and the tokens before what is to be named."""

    def __init__(self, request: GrowthRequest, budget: DraftBudget, grower: Grower) -> None:
        self.request, self.state, self.grower = request, request.state, grower
        self.wanted: tuple[NDArray[np.int64], IntArray] = np.zeros(1, np.int64), self.root
        self._budget = budget
        self._depths: list[int] = []  # of the rows so far

    def begin(self, num_places: int) -> None:
        """Start the tree, of a block that was run."""
        self.grower.begin(self._budget.with_block_run, MOST_ROWS, num_places - 1)

    @property
    def root(self) -> IntArray:
        """int32 [1]: the block's, a token."""
        end = self.request.end
        return self.state.request.tokens[end - 1 : end]

    def grow(self, top: TopTokens) -> bool:
        """Take in what follows the rows that were wanted; whether more are."""
        rows = self.grower.grow(top)
        if rows is None:
            return False
        for parent in rows.parents[len(self._depths) :].tolist():
            self._depths.append(1 + (self._depths[parent] if parent >= 0 else 0))
        self.wanted = np.array(self._depths[-len(rows.tokens) :], np.int64), rows.tokens
        return True


class BlockDrafting:
    """pool: of the target's blocks."""

    reads_features = True

    def __init__(self, model: BlockModel, pool: BlockPool) -> None:
        self.model = model
        self.store: KvStore = model.new_store(pool.num_blocks)
        self._kept = KeptFeatures(pool, model.features, self._read)
        self.keep_features = self._kept.keep
        self._is_read = StampedSlots(pool)

    def open(self, request: Request) -> DraftModelState:
        """What is kept of a new sequence."""
        return DraftModelState(
            request,
            self.store,
            self.model.vocab_size,
            reads_tokens_alone=False,
            block_len=self.model.block_len,
            is_block=self.model.correction is None,
        )

    def grow_batch(self, requests: Sequence[GrowthRequest]) -> dict[DraftModelState, Fallback]:
        """Grow the trees of the sequences that have a budget, of one packed forward; which ones it can do no more
        for."""
        self._kept.flush()
        growths = [
            Growth(each, each.budget, each.state.grower)
            for each in requests
            if each.budget is not None and each.state.grower is not None and self._is_ready(each)
        ]
        if not growths:
            return {}
        started = time.perf_counter()
        logits_RV = self.model.name([self._block(each) for each in growths], self.store)
        for growth in growths:
            growth.begin(self.model.num_places)
        if self.model.correction is None:
            broken = self._grow_at_once(growths, top_tokens(logits_RV, NUM_SUCCESSORS))
        else:
            broken = self._grow_by_paths(growths, Shortlist.of(logits_RV), self.model.correction)
        seconds = (time.perf_counter() - started) / len(growths)
        for growth in growths:
            growth.state.note_forward(seconds, min(self.model.block_len, LONG_READ))
        return dict.fromkeys(broken, NAN)

    def _grow_at_once(self, growths: Sequence[Growth], top: TopTokens) -> list[DraftModelState]:
        """Grow each tree of what is said of its depths; whose were no numbers."""
        broken: list[DraftModelState] = []
        num_places = self.model.num_places
        for place, growth in enumerate(growths):
            own = top.rows(place * num_places, (place + 1) * num_places)
            if np.isfinite(own.probabilities).all():
                growth.grow(own)
            else:
                broken.append(growth.state)
        return broken

    def _grow_by_paths(
        self, growths: Sequence[Growth], said: Shortlist, correction: Correction
    ) -> list[DraftModelState]:
        """Grow the trees node by node, as what is said of a place depends on the token before; whose were no
        numbers."""
        broken: list[DraftModelState] = []
        asked = list(enumerate(growths))
        while asked:
            rows = np.concatenate([place * self.model.num_places + growth.wanted[0] for place, growth in asked])
            top = said.after(correction, rows, np.concatenate([growth.wanted[1] for _, growth in asked]))
            told, asked, end = asked, [], 0
            for place, growth in told:
                first, end = end, end + len(growth.wanted[0])
                own = top.rows(first, end)
                if not np.isfinite(own.probabilities).all():
                    broken.append(growth.state)
                elif growth.grow(own):
                    asked.append((place, growth))
        return broken

    def _block(self, growth: Growth) -> Block:
        return self.model.block(int(growth.root[0]), growth.request.table.blocks, growth.request.end - 1)

    def _is_ready(self, request: GrowthRequest) -> bool:
        """Whether there are tokens before its root, and all were read: the length of its rows says which were."""
        rows, last = request.state.rows_in(request.table), request.end - 1
        rows.length += self._is_read.num_noted(slots_of(request.table.blocks, np.arange(rows.length, last)))
        return rows.length == last > 0

    def _read(self, rows: FeatureRows) -> None:
        self.model.read(rows, self.store)
        self._is_read.note(rows.slots)
