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
from numpy.typing import NDArray

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

# Shape suffixes: K rows of the target's, M rows of the step, R rows that are asked of, N rows of all trees, E width,
# F all features of a row.


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
        return grow_in_rounds(unseen, partial(self._forward, TreeRows()), lambda _: longest, "head")

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

    def _forward(self, trees: TreeRows, asked: Sequence[tuple[DraftModelState, Segment]]) -> list[TopTokens]:
        """One packed forward: the likeliest tokens after each segment's logit rows."""
        batch = pack([segment for _, segment in asked], self.store)
        hidden_ME = self._features.read(_slots_of_all(asked)) if trees.are_empty else trees.parents(asked)
        hidden_RE, logits_RW = self._runner.run(batch, hidden_ME)
        trees.add(asked, batch.logit_offsets, hidden_RE)
        top = top_tokens(logits_RW, NUM_SUCCESSORS)
        top = TopTokens(self.model.target_ids[top.ids], top.probabilities)
        return [top.rows(first, end) for first, end in pairwise(batch.logit_offsets.tolist())]


def _slots_of_all(asked: Sequence[tuple[DraftModelState, Segment]]) -> NDArray[np.int64]:
    """Where the tokens before those of the segments, which are no trees, lie."""
    return np.concatenate(
        [
            slots_of(
                segment.rows.table.blocks, np.arange(segment.rows.length, segment.rows.length + len(segment.tokens))
            )
            for _, segment in asked
        ]
    )


class TreeRows:
    """What the rows of growing trees came to, of all sequences in the order in which they were run.

    So a forward takes one list of numbers to the device, however many sequences it is for."""

    def __init__(self) -> None:
        self._rows_NE: torch.Tensor | None = None
        self._places: dict[DraftModelState, NDArray[np.int64]] = {}  # of a tree's root and rows among all

    @property
    def are_empty(self) -> bool:
        return self._rows_NE is None

    def parents(self, asked: Sequence[tuple[DraftModelState, Segment]]) -> torch.Tensor:
        """[M, E]: of each row of these trees what its parent came to."""
        assert self._rows_NE is not None
        places = []
        for state, segment in asked:
            assert segment.parents is not None
            places.append(self._places[state][segment.parents[segment.num_written :] + 1])  # the root's come first
        places_M = torch.from_numpy(np.concatenate(places))
        return self._rows_NE[places_M.to(self._rows_NE.device, non_blocking=True)]

    def add(self, asked: Sequence[tuple[DraftModelState, Segment]], offsets: IntArray, hidden_RE: torch.Tensor) -> None:
        """hidden_RE: what the segments' logit rows came to, those of each from its offset on."""
        before_NE = hidden_RE[:0] if self._rows_NE is None else self._rows_NE
        self._rows_NE = torch.cat((before_NE, hidden_RE))  # a copy: the next forward may write where this one did
        for (state, _), (start, end) in zip(asked, pairwise(offsets.tolist()), strict=True):
            added = np.arange(len(before_NE) + start, len(before_NE) + end)
            self._places[state] = np.concatenate((self._places.get(state, added[:0]), added))
