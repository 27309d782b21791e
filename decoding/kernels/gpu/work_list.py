"""Cuts the keys of a step's rows into ranges, and lists what is merged. Compiled for the processor: it makes what a GPU
reads, as `work_items` does.

Invariant: where a row's keys are cut depends on their positions alone.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from decoding.kernels.cpu.trees import IntArray, trunk_len
from decoding.kernels.numba_kernel import kernel

SPLIT = 512  # the length of the first ranges
OCTAVE = 16  # so many ranges are as long; each further octave's are twice as long as those of the one before
MOST_RANGES = 128  # of a segment, the last of which has no end
ROW_WORDS = (
    5  # ranges that are to be merged, partial sums that each may have, the row's first, its places, its position
)
PLACE_WORDS = 2  # of a partial sum: which one it is of a row's, the first position of its keys
NO_END = 1 << 30
# Words of an item, which a program reads in one load. Rows are counted within the segment, or the path.
FIRST_ROW = 0  # of the segment, in the step
NUM_ROWS = 1
FIRST_PAIR = 2  # (row, head) of the tile
FIRST_POSITION = 3  # of the tile's rows
TABLE = 4  # where the segment's block table begins, counted from the end of all tables
START = 5  # the first position of the keys
END = 6  # the last one + 1, as far as the tile's rows see
PARTIAL = 7  # of the segment's first row
PARTIALS_EACH = 8  # of a row; 1: the result is complete
IS_FIRST = 9  # whether keys begin at position 0
PATH = 10  # where the path's record begins in the list, -1 if the tile has none
BASE = 11  # the position from which on a path's nodes are listed
LENGTH = 12  # committed tokens, which the tree's keys lie behind
ITEM_WORDS = 16


class Trees(NamedTuple):
    """The fields of a `StepBatch` that say what sees what."""

    offsets: IntArray
    tree_offsets: IntArray
    prefix_lens: IntArray
    num_written: IntArray
    is_chain: NDArray[np.bool_]
    parents_P: IntArray
    positions_P: NDArray[np.int64]
    table_offsets: IntArray


class Bounds(NamedTuple):
    """Of partial sums: of a segment of more than `many` rows, of any, of a step, and of one whose blocks of keys have
    one each, as they have where at most `few_jobs` pairs of item and kv head would be."""

    many: int
    most_of_many: int
    most: int
    most_of_step: int
    most_of_split: int
    few_jobs: int


class Tiling(NamedTuple):
    """Of a kind of layer: query heads per kv head, kv heads, keys of a block, and the (row, head) pairs of its
    tiles: of usual ones, and of those of long chains, 0 where there are none."""

    group: int
    heads: int
    keys: int
    pairs: int
    many: int


class Cuts(NamedTuple):
    """How the keys of each segment are cut.

    forks: a multiple of a block's keys; from this position on a tree's keys are listed by paths. NO_END for chains.
    num_partials: of all rows. segments: int32 [B, 8]: how many ranges are one; how many lie before the fork; the first
    partial sum; how many a row has for each of those ranges, one or one for each block of keys; how many it has at all;
    the position from which on each block of keys has one, behind one of what lies before it in its range; the most that
    are added up to one range; how many ranges there are.
    """

    forks: NDArray[np.int32]
    num_partials: int
    segments: NDArray[np.int32]


class RowLists(NamedTuple):
    """What is merged. rows: int32 [M, 5], of each row of the step, its places counted from the first one's. places:
    int32 [L, 2], range by range of each segment."""

    rows: NDArray[np.int32]
    places: NDArray[np.int32]


@kernel
def place_of(position: int) -> int:
    """The number of the range that a position is in."""
    unit, octave = position // SPLIT, 1
    if unit < 2 * OCTAVE:
        return unit
    while unit >> (octave - 1) >= 2 * OCTAVE:
        octave += 1
    return min(MOST_RANGES - 1, (octave - 1) * OCTAVE + (unit >> (octave - 1)))


@kernel
def start_of(place: int) -> int:
    """The first position of a range."""
    if place < OCTAVE:
        return SPLIT * place
    if place >= MOST_RANGES:
        return NO_END
    return SPLIT * (OCTAVE + place % OCTAVE << (place // OCTAVE - 1))


@kernel
def cut(trees: Trees, bounds: Bounds, tiling: Tiling, most_keys: int) -> Cuts:
    """Ranges of segments with more partial sums than they may have are coarser, and where all together have more than
    a step may those of the largest segments are, until they have not. tiling: of the kind with the fewest keys of a
    block; most_keys: of any."""
    most, most_of_many = bounds.most, bounds.most_of_many
    cuts = _cut(trees, bounds, tiling, most_keys, most, most_of_many, False)
    while cuts.num_partials > bounds.most_of_step and most > 1:
        most, most_of_many = most // 2, min(most_of_many, most // 2)
        cuts = _cut(trees, bounds, tiling, most_keys, most, most_of_many, False)
    num_jobs = 0
    for segment in range(len(trees.prefix_lens)):
        num_rows = trees.offsets[segment + 1] - trees.offsets[segment]
        num_jobs += -(-num_rows * tiling.group // tiling.pairs) * (cuts.segments[segment, 1] + 1) * tiling.heads
    if tiling.keys == SPLIT or num_jobs > bounds.few_jobs or np.max(cuts.segments[:, 0]) > 1:
        return cuts
    split = _cut(trees, bounds, tiling, most_keys, most, most_of_many, True)
    return split if split.num_partials <= bounds.most_of_split else cuts


@kernel
def _cut(
    trees: Trees, bounds: Bounds, tiling: Tiling, most_keys: int, most: int, most_of_many: int, is_split: bool
) -> Cuts:
    """is_split: each block of keys has a partial sum of its own, which has the same bits."""
    num_segments, num_partials = len(trees.prefix_lens), 0
    segments, forks = np.zeros((num_segments, 8), np.int32), np.full(num_segments, NO_END, np.int32)
    for segment in range(num_segments):
        num_rows = trees.offsets[segment + 1] - trees.offsets[segment]
        first, end = trees.tree_offsets[segment], trees.tree_offsets[segment + 1]
        last = int(np.max(trees.positions_P[first:end]))
        num_places = place_of(last) + 1
        stride = max(1, -(-num_places * num_rows // (most_of_many if num_rows > bounds.many else most)))
        parts, tail, num_single = min(SPLIT, last + tiling.keys) // tiling.keys if is_split else 1, NO_END, 0
        num_ranges = segments[segment, 7] = -(-num_places // stride)
        if not trees.is_chain[segment]:
            fork = trees.prefix_lens[segment] + trunk_len(trees.parents_P[first:end])
            forks[segment] = fork // most_keys * most_keys
            num_ranges = min(num_ranges, place_of(forks[segment]) // stride)
            tail = start_of(num_ranges * stride) if is_split else forks[segment]
            num_single = max(0, -(-(last + 1 - tail) // tiling.keys))
        each = num_ranges * parts + (num_single + 1 if tail < NO_END else 0)
        segments[segment, 0], segments[segment, 1], segments[segment, 2] = stride, num_ranges, num_partials
        segments[segment, 3], segments[segment, 4], segments[segment, 5] = parts, each, tail
        segments[segment, 6] = max(parts, num_single + 1)
        num_partials += num_rows * each if each > 1 else 0
    return Cuts(forks, num_partials, segments)


@kernel
def list_rows(trees: Trees, cuts: Cuts, keys: int) -> RowLists:
    """keys: of a block, the fewest of any kind."""
    rows, num_places = (
        np.empty((trees.offsets[-1], ROW_WORDS), np.int32),
        np.sum(cuts.segments[:, 6] * cuts.segments[:, 7]),
    )
    places, place = np.full((num_places, PLACE_WORDS), NO_END, np.int32), 0
    for segment in range(len(cuts.forks)):
        stride, num_shared, first, parts, each, tail, most_parts, num_ranges = cuts.segments[segment]
        first_node = trees.tree_offsets[segment] + trees.num_written[segment]
        for row in range(trees.offsets[segment + 1] - trees.offsets[segment]):
            record = rows[trees.offsets[segment] + row]
            record[0], record[1] = num_ranges if each > 1 else 0, most_parts
            record[2], record[3] = first + row * each, place * PLACE_WORDS
            record[4] = trees.positions_P[first_node + row]
        for number in range(num_ranges):
            start, end, own = (
                start_of(number * stride),
                start_of((number + 1) * stride),
                places[place : place + most_parts],
            )
            if number < num_shared:
                for part in range(parts if end - start == SPLIT else 1):
                    own[part, 0], own[part, 1] = number * parts + part, start + part * keys
            else:
                has_one_before = start < tail
                if has_one_before:
                    own[0, 0], own[0, 1] = num_shared * parts, start
                for part in range(most_parts - has_one_before):
                    key = max(start, tail) + part * keys
                    if key < end:
                        own[part + has_one_before, 0] = num_shared * parts + 1 + (key - tail) // keys
                        own[part + has_one_before, 1] = key
            place += most_parts
    return RowLists(rows, places)
