"""The work list of a step, which the programs of a launch divide among themselves: tiles of rows by ranges of keys.

A row is a token. A tile is some (row, head) pairs of one segment that share a kv head; a range is a run of positions,
and each kind of layer (query heads per kv head, pairs of a tile) has its own list. Where a tree forks its nodes no
longer lie in the order of their positions: from there on a tile has rows of one path from root to leaf, and lists of
which node is at which position.
Invariant: where a row's keys are cut depends on their positions alone, so it is the same in a tree, in a chain and in
any batch, in steps of up to 64 tokens. Larger ones may have coarser ranges, unless all partial sums are given room.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from decoding.cache.batch import StepBatch
from decoding.cache.step_tensors import Work, WorkRoom
from decoding.kernels.gpu.work_list import (
    ITEM_WORDS,
    SEGMENT_WORDS,
    Trees,
    cut,
    list_items,
    list_paths,
    place_of,
)

MOST_PARTIALS = 8192  # partial sums of a segment per head: a long prompt's rows give enough parallel work
STEP_SHARE = 2  # times as many are those of a step: 64 tokens have them in any context
PATH_WORDS = 64  # for each row, that there is room for in a captured step
ALL_PARTIALS = 1 << 30  # of a segment, where its ranges are never coarser


class Kind(NamedTuple):
    """group: query heads per kv head. pairs: of a tile."""

    group: int
    pairs: int


def share_out(batch: StepBatch, kinds: Sequence[Kind], most_partials: int = MOST_PARTIALS) -> Work:
    """The work list of a step: for each kind the number of items and where they begin, then the segments, then the
    items, then the paths. Its partial sums are of all rows and ranges; a segment with more than `most_partials` has
    coarser ranges, and so have those of a step with more than twice as many."""
    trees = Trees(
        batch.offsets,
        batch.tree_offsets,
        batch.prefix_lens,
        batch.num_written,
        batch.is_chain,
        batch.parents_P,
        batch.positions_P,
    )
    cuts = cut(trees, most_partials, STEP_SHARE * most_partials)
    paths = list_paths(trees, cuts)
    items = [list_items(trees, cuts, paths, *kind) for kind in kinds]
    header, place = np.empty((len(kinds), 2), np.int32), 2 * len(kinds) + cuts.segments.size
    for kind, own in enumerate(items):
        header[kind] = len(own), place
        place += own.size
    for own in items:
        own[own[:, 5] >= 0, 5] += place
    words = np.concatenate([part.ravel() for part in (header, cuts.segments, *items, paths.records)])
    return Work(words, cuts.num_partials)


def most_work(num_rows: int, most_keys: int, kinds: Sequence[Kind], most_partials: int = MOST_PARTIALS) -> WorkRoom:
    """Room for any step of `num_rows` rows (hence at most as many segments) with up to `most_keys` keys each."""
    num_tiles = sum(num_rows * kind.group // kind.pairs + num_rows for kind in kinds)
    num_ranges = place_of(most_keys) + 1
    num_words = 2 * len(kinds) + (SEGMENT_WORDS + PATH_WORDS) * num_rows + ITEM_WORDS * (num_ranges + 2) * num_tiles
    return WorkRoom(num_words, min(num_ranges * num_rows, STEP_SHARE * most_partials))
