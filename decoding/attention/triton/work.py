"""The work list of a step, which the programs of a launch divide among themselves: tiles of rows by ranges of keys.

A row is a token. A tile is some (row, head) pairs of one segment that share a kv head; a range is a run of the
segment's keys. Each kind of layer (query heads per kv head, pairs of a tile) has its own list.
Invariant: a segment's tiles and ranges depend on its own rows and length, never on other segments.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numba as nb
import numpy as np
from numpy.typing import NDArray

from decoding.cache.batch import StepBatch
from decoding.cache.step_tensors import Work, WorkRoom
from decoding.core.tree import IntArray

SPLIT = 256  # the length of a range is a multiple of so many keys
MOST_RANGES = 32  # of a segment, so that a long context has few partial sums
MOST_PARTIALS = 4096  # partial sums of a segment per head: a long prompt's rows give enough parallel work
MOST_SHORT_ROWS = 256  # of a step, that have room for the partial sums of any context
SEGMENT_WORDS = 3  # keys of a range, number of ranges, first partial sum
ITEM_WORDS = 3  # segment, first (row, head) pair, range


class Kind(NamedTuple):
    """group: query heads per kv head. pairs: of a tile."""

    group: int
    pairs: int


def share_out(batch: StepBatch, kinds: Sequence[Kind]) -> Work:
    """The work list of a step: for each kind the number of items and where they begin, then the segments, then the
    items. Its partial sums are of all rows and ranges."""
    segments, num_partials = _cut(batch.offsets, batch.prefix_lens, batch.tree_offsets)
    items = [_list_items(batch.offsets, segments, *kind) for kind in kinds]
    header, place = np.empty((len(kinds), 2), np.int32), 2 * len(kinds) + segments.size
    for kind, own in enumerate(items):
        header[kind] = len(own), place
        place += own.size
    return Work(np.concatenate([part.ravel() for part in (header, segments, *items)]), num_partials)


def most_work(num_rows: int, most_keys: int, kinds: Sequence[Kind]) -> WorkRoom:
    """Room for steps of `num_rows` rows (hence at most as many segments) with up to `most_keys` keys each. Long prompts
    need few partial sums for their rows, so that larger steps have room for no more than one of so many short ones."""
    num_tiles = sum(num_rows * kind.group // kind.pairs + num_rows for kind in kinds)
    num_ranges = min(MOST_RANGES, -(-most_keys // SPLIT))
    num_words = 2 * len(kinds) + SEGMENT_WORDS * num_rows + ITEM_WORDS * num_ranges * num_tiles
    return WorkRoom(num_words, num_ranges * min(num_rows, MOST_SHORT_ROWS))


@nb.njit(cache=True)
def _cut(offsets: IntArray, prefix_lens: IntArray, tree_offsets: IntArray) -> tuple[NDArray[np.int32], int]:
    """int32 [B, 3]: each segment's ranges; and the number of partial sums. A row with one range needs none."""
    segments, num_partials = np.empty((len(prefix_lens), SEGMENT_WORDS), np.int32), 0
    for segment in range(len(prefix_lens)):
        num_rows = offsets[segment + 1] - offsets[segment]
        num_keys = prefix_lens[segment] + tree_offsets[segment + 1] - tree_offsets[segment]
        most_ranges = max(1, min(MOST_RANGES, MOST_PARTIALS // num_rows))
        range_len = SPLIT * -(-num_keys // (SPLIT * most_ranges))
        num_ranges = -(-num_keys // range_len)
        segments[segment, 0], segments[segment, 1], segments[segment, 2] = range_len, num_ranges, num_partials
        num_partials += num_rows * num_ranges if num_ranges > 1 else 0
    return segments, num_partials


@nb.njit(cache=True)
def _list_items(offsets: IntArray, segments: NDArray[np.int32], group: int, pairs: int) -> NDArray[np.int32]:
    """int32 [I, 3]: the items, ordered so that tiles of the same keys follow each other and find them in the cache."""
    num_tiles = -(-(offsets[1:] - offsets[:-1]) * group // pairs)
    items, item = np.empty((np.sum(num_tiles * segments[:, 1]), ITEM_WORDS), np.int32), 0
    for segment in range(len(segments)):
        for number in range(segments[segment, 1]):
            for tile in range(num_tiles[segment]):
                items[item, 0], items[item, 1], items[item, 2] = segment, tile * pairs, number
                item += 1
    return items
