"""Drafting with a head: which of a sequence's rows it has run, and the forwards by which trees grow, all together.

Owns the head's keys and values in the target's blocks and what the target computed of each token. Row i of the head is
of token i and the one that follows it, so a tree's rows begin in the place of its root. Rows of trees are run again
once the target knows them. Knows nothing of how a tree grows: growers do.
Invariant: a block counts as filled once all its rows were run. Of sequences that part after a shared block, its last
row is the latest one's: the others' drafts may suffer, their replies cannot.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import pairwise

import numpy as np
import torch

from decoding.cache.batch import Segment, pack
from decoding.cache.block_pool import BLOCK_LEN, BlockPool
from decoding.cache.feature_store import FeatureStore
from decoding.cache.kv_store import KvStore, slots_of
from decoding.cache.stamped import FilledBlocks
from decoding.core.request import Request
from decoding.core.top_tokens import TopTokens
from decoding.core.tree import IntArray
from decoding.drafting.draft_model.rounds import grow_in_rounds, unseen_of
from decoding.drafting.draft_model.state import DraftModelState, Fallback, GrowthRequest
from decoding.drafting.eagle.head_model import HeadModel
from decoding.drafting.eagle.kept_features import FeatureRows, KeptFeatures
from decoding.model.device.runner import Progress, silent
from decoding.sampling.top_tokens import top_tokens
from decoding.stores.successor_table import NUM_SUCCESSORS

# Shape suffixes: K rows of the target's, M rows of the step, R rows that are asked of, T a tree's root and rows so far,
# E width, F all features of a row.


class HeadDrafting:
    """pool: of the target's blocks. most_rows: of the prompts that sequences may bring to one forward together."""

    reads_features = True

    def __init__(self, model: HeadModel, pool: BlockPool, most_rows: int, progress: Progress = silent) -> None:
        self.model = model
        self.store: KvStore = model.new_store(pool.num_blocks)
        self._runner = model.runner_over(self.store, model.max_model_len, progress=progress)
        self._features = FeatureStore(pool, model.width, model.dtype, model.device)
        self._filled = FilledBlocks(pool)  # whose rows were all run here
        self._kept = KeptFeatures(pool, model.features, self._read)
        self.keep_features = self._kept.keep
        self._most_rows = most_rows

    def open(self, request: Request) -> DraftModelState:
        """What is kept of a new sequence."""
        return DraftModelState(request, self.store, self.model.vocab_size, reads_tokens_alone=False)

    def grow_batch(self, requests: Sequence[GrowthRequest]) -> dict[DraftModelState, Fallback]:
        """Bring every sequence up to date and grow the trees of those that are; which ones it can do no more for.

        One packed forward for the rows that the target has made possible, then one for each depth of the trees. Of a
        sequence whose last token but one the target has not run yet no tree is begun.
        """
        self._kept.flush()
        unseen, longest = unseen_of(requests, self._unseen, self._most_rows), self.model.max_model_len
        return grow_in_rounds(unseen, partial(self._forward, {}), lambda _: longest, "head")

    def _read(self, rows: FeatureRows) -> None:
        self._features.write(rows.slots, self.model.fuse(rows.features_KF))

    def _unseen(self, request: GrowthRequest, most_rows: int) -> Segment:
        """The next rows to run, but for those in blocks that are filled, be it by another sequence of this step.

        The last row of the last of these is run again: the token after it may be another.
        """
        rows, blocks, tokens = request.state.rows_in(request.table), request.table.blocks, request.state.request.tokens
        last = request.end - 1  # rows there may be: one less than tokens
        before = rows.length
        while rows.length + BLOCK_LEN <= last and blocks[rows.length // BLOCK_LEN] in self._filled:
            rows.length += BLOCK_LEN - rows.length % BLOCK_LEN
        rows.length -= rows.length > before
        slots = slots_of(blocks, np.arange(rows.length, min(last, rows.length + most_rows)))
        end = rows.length + self._features.num_known(slots)
        self._filled.note(blocks[: end // BLOCK_LEN])
        is_through = end == last and request.budget is not None
        return Segment(rows, tokens[rows.length + 1 : end + 1], None, "last" if is_through else "none")

    def _forward(
        self, trees: dict[DraftModelState, torch.Tensor], asked: Sequence[tuple[DraftModelState, Segment]]
    ) -> list[TopTokens]:
        """One packed forward: the likeliest tokens after each segment's logit rows. trees: [T, E] of each, what its
        root and its rows came to, so far and from here on."""
        batch = pack([segment for _, segment in asked], self.store)
        hidden_ME = torch.cat([self._given(segment, trees.get(state)) for state, segment in asked])
        hidden_RE, logits_RW = self._runner.run(batch, hidden_ME)
        top = top_tokens(logits_RW, NUM_SUCCESSORS)
        top = TopTokens(self.model.target_ids[top.ids], top.probabilities)
        tops = []
        for (state, _), (first, end) in zip(asked, pairwise(batch.logit_offsets.tolist()), strict=True):
            before_TE = trees.get(state, hidden_RE[:0])
            trees[state] = torch.cat((before_TE, hidden_RE[first:end]))
            tops.append(top.rows(first, end))
        return tops

    def _given(self, segment: Segment, hidden_TE: torch.Tensor | None) -> torch.Tensor:
        """[M, E]: what goes into a segment's rows, of a tree what their parents came to, else what the target did."""
        if hidden_TE is None:
            first = segment.rows.length
            slots = slots_of(segment.rows.table.blocks, np.arange(first, first + len(segment.tokens)))
            return self._features.read(slots)
        assert segment.parents is not None
        parents: IntArray = segment.parents[segment.num_written :] + np.int32(1)  # the root's come first
        return hidden_TE[torch.from_numpy(parents).to(hidden_TE.device, torch.int64)]
