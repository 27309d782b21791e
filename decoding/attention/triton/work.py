"""The work list of a step, which the programs of a launch divide among themselves: tiles of rows by ranges of keys.

A row is a token. A tile is some (row, head) pairs of one segment that share a kv head; a range is a run of positions of
512 keys or more, added up block by block, by one program or in a small step by one for each block. Each kind of layer
(heads, sizes of tiles) has its own lists. Where a tree forks its nodes no longer lie in the order of their positions:
from that block on a tile has rows of one path from root to leaf, and lists of which node is at which position.
Invariant: where a row's keys are cut depends on their positions alone, so it is the same in a tree, in a chain and in
any batch, in steps of up to 64 tokens. Larger ones may have coarser ranges, unless all partial sums are given room.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from decoding.cache.batch import StepBatch
from decoding.cache.step_tensors import Work, WorkRoom
from decoding.kernels.gpu.work_items import list_step
from decoding.kernels.gpu.work_list import (
    ITEM_WORDS,
    PLACE_WORDS,
    ROW_WORDS,
    SPLIT,
    Bounds,
    Trees,
    place_of,
)

MOST_PARTIALS = 8192  # partial sums of a segment per head
MOST_OF_PROMPT = 2048  # of one of more than EXACT_ROWS rows, which are enough parallel work
STEP_SHARE = 2  # times as many are those of a step: 64 tokens have them in any context
EXACT_ROWS = 64  # of a step, whose ranges are never coarser, and which has no tile of many
TAIL_KEYS = 128  # as deep as a tree is behind the first fork's block of keys, so that it has room
PATH_WORDS = 64  # for each row, that there is room for in a captured step
ALL_PARTIALS = 1 << 30  # of a segment, where its ranges are never coarser
FEW_JOBS = 96  # (item, kv head) pairs that leave a device idle: below, blocks of keys are jobs of their own


class Kind(NamedTuple):
    """Query heads per kv head, kv heads, keys of a block, and (row, head) pairs of tiles: of usual ones, and of
    those of long chains, 0 where there are none."""

    group: int
    heads: int
    keys: int
    pairs: int
    many: int = 0

    @property
    def sizes(self) -> list[int]:
        """The pairs of its tiles, each of which has a list of its own."""
        return [size for size in (self.pairs, self.many) if size]


def lists_of(kinds: Sequence[Kind]) -> list[tuple[Kind, int]]:
    """Of each list of a step its kind and the pairs of its tiles."""
    return [(kind, size) for kind in kinds for size in kind.sizes]


def share_out(batch: StepBatch, kinds: Sequence[Kind], most_partials: int = MOST_PARTIALS) -> Work:
    """The work list of a step: for each list the number of items and where they begin, the number of rows, the rows,
    the places of their partial sums, the items, the paths. A segment with more partial sums than `most_partials` has
    coarser ranges, and so have those of a step with more than twice as many."""
    trees = Trees(
        batch.offsets,
        batch.tree_offsets,
        batch.prefix_lens,
        batch.num_written,
        batch.is_chain,
        batch.parents_P,
        batch.positions_P,
        batch.table_offsets,
    )
    has_many = batch.num_tokens > EXACT_ROWS
    lists = np.array([(*kind[:4], kind.many if has_many else 0, size) for kind, size in lists_of(kinds)])
    return Work(*list_step(trees, _bounds(most_partials), lists))


def _bounds(most_partials: int) -> Bounds:
    most_of_prompt = min(most_partials, MOST_OF_PROMPT) if most_partials < ALL_PARTIALS else ALL_PARTIALS
    return Bounds(EXACT_ROWS, most_of_prompt, most_partials, STEP_SHARE * most_partials, MOST_PARTIALS, FEW_JOBS)


def most_work(num_rows: int, most_keys: int, kinds: Sequence[Kind], most_partials: int = MOST_PARTIALS) -> WorkRoom:
    """Room for any step of `num_rows` rows (hence at most as many segments) with up to `most_keys` keys each."""
    num_tiles = sum(num_rows * kind.group // kind.pairs + num_rows for kind in kinds)
    keys = min(kind.keys for kind in kinds)
    num_ranges, parts = place_of(most_keys) + 1, SPLIT // keys
    num_items = max((num_ranges + TAIL_KEYS // keys) * num_tiles, len(kinds) * (FEW_JOBS + num_rows) * parts)
    num_places = max((num_ranges + 1) * (1 + TAIL_KEYS // keys), parts * (FEW_JOBS + 1) // num_rows) * num_rows
    num_words = 2 * len(lists_of(kinds)) + 1 + (ROW_WORDS + PATH_WORDS) * num_rows + PLACE_WORDS * num_places
    num_words += ITEM_WORDS * num_items
    whole = min((num_ranges + 1 + TAIL_KEYS // keys) * num_rows, STEP_SHARE * most_partials)
    return WorkRoom(num_words, max(whole, min(parts * num_ranges * num_rows, MOST_PARTIALS)))
