"""Cuts the keys of a step's rows into ranges and its rows into tiles, and lists what is to be computed. Compiled for
the processor: it makes what a GPU reads.

Invariant: where a row's keys are cut depends on their positions alone.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from decoding.kernels.cpu.trees import IntArray, trunk_len
from decoding.kernels.numba_kernel import kernel

SPLIT = 128  # the length of the first ranges
OCTAVE = 16  # so many ranges are as long; each further octave's are twice as long as those of the one before
MOST_RANGES = 128  # of a segment, the last of which has no end
SEGMENT_WORDS = 3  # how many ranges are one, number of ranges, first partial sum
ITEM_WORDS = 6  # segment, first (row, head) pair, number of the range, its first and its last position + 1, path or -1
NO_END = 1 << 30


class Trees(NamedTuple):
    """The fields of a `StepBatch` that say what sees what."""

    offsets: IntArray
    tree_offsets: IntArray
    prefix_lens: IntArray
    num_written: IntArray
    is_chain: NDArray[np.bool_]
    parents_P: IntArray
    positions_P: NDArray[np.int64]


class Cuts(NamedTuple):
    """Of each segment. segments: int32 [B, 3], for the device. num_shared: how many of its ranges, the first ones, have
    their keys in the order of positions. num_partials: of all."""

    segments: NDArray[np.int32]
    num_shared: NDArray[np.int32]
    num_partials: int


class Paths(NamedTuple):
    """records: int32, for the device: of each path its number of rows, the position from which on nodes are listed,
    the rows, the nodes. places: int32 [P, 3], of each path its segment, where its record begins, its last position."""

    records: NDArray[np.int32]
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
def cut(trees: Trees, most_partials: int, most_of_step: int) -> Cuts:
    """Ranges of segments with more than `most_partials` are coarser, and where all together have more than
    `most_of_step` those of the largest segments are, until they have not."""
    cuts = _cut(trees, most_partials)
    while cuts.num_partials > most_of_step:
        most_partials //= 2
        cuts = _cut(trees, most_partials)
    return cuts


@kernel
def _cut(trees: Trees, most_partials: int) -> Cuts:
    num_segments = len(trees.prefix_lens)
    segments, num_shared = np.empty((num_segments, SEGMENT_WORDS), np.int32), np.empty(num_segments, np.int32)
    num_partials = 0
    for segment in range(num_segments):
        num_rows = trees.offsets[segment + 1] - trees.offsets[segment]
        first, end = trees.tree_offsets[segment], trees.tree_offsets[segment + 1]
        num_places = place_of(np.max(trees.positions_P[first:end])) + 1
        stride = max(1, -(-num_places * num_rows // most_partials))
        num_ranges = -(-num_places // stride)
        num_shared[segment] = num_ranges
        if not trees.is_chain[segment]:
            fork = trees.prefix_lens[segment] + trunk_len(trees.parents_P[first:end])
            num_shared[segment] = min(num_ranges, place_of(fork) // stride)
        segments[segment, 0], segments[segment, 1], segments[segment, 2] = stride, num_ranges, num_partials
        num_partials += num_rows * num_ranges if num_ranges > 1 else 0
    return Cuts(segments, num_shared, num_partials)


@kernel
def list_paths(trees: Trees, cuts: Cuts) -> Paths:
    """Each row that reaches beyond its segment's shared ranges is in one path, and in order of position there."""
    most_words = most_paths = 0
    for segment in range(len(trees.prefix_lens)):
        if not trees.is_chain[segment]:
            first, end = trees.tree_offsets[segment], trees.tree_offsets[segment + 1]
            most_paths += end - first
            depths = trees.positions_P[first:end] - trees.prefix_lens[segment]
            most_words += 2 * np.sum(depths + 2)
    records, index, place, path = np.empty(most_words, np.int32), np.empty((most_paths, 3), np.int32), 0, 0
    for segment in range(len(trees.prefix_lens)):
        if trees.is_chain[segment]:
            continue
        first, end = trees.tree_offsets[segment], trees.tree_offsets[segment + 1]
        length, num_written = trees.prefix_lens[segment], trees.num_written[segment]
        parents, positions = trees.parents_P[first:end], trees.positions_P[first:end]
        start = start_of(cuts.num_shared[segment] * cuts.segments[segment, 0])
        base = max(length, start)
        is_listed, is_parent = np.zeros(end - first, np.bool_), np.zeros(end - first, np.bool_)
        for node in range(end - first):
            if parents[node] >= 0:
                is_parent[parents[node]] = True
        for leaf in range(end - first):
            if is_parent[leaf] or positions[leaf] < start:
                continue
            num_rows, node = 0, leaf
            while node >= 0 and positions[node] >= base:
                num_rows += node >= num_written and not is_listed[node]
                node = parents[node]
            if num_rows == 0:
                continue
            records[place], records[place + 1] = num_rows, base
            row, nodes, node = place + 1 + num_rows, place + 2 + num_rows, leaf
            while node >= 0 and positions[node] >= base:
                if node >= num_written and not is_listed[node]:
                    records[row], is_listed[node] = node - num_written, True
                    row -= 1
                records[nodes + positions[node] - base] = node
                node = parents[node]
            index[path, 0], index[path, 1], index[path, 2] = segment, place, positions[leaf]
            place, path = nodes + positions[leaf] - base + 1, path + 1
    return Paths(records[:place], index[:path])


@kernel
def list_items(trees: Trees, cuts: Cuts, paths: Paths, group: int, pairs: int) -> NDArray[np.int32]:
    """int32 [I, 6]: the items, ordered so that tiles of the same keys follow each other and find them in the cache. A
    path's place is counted from the first path's."""
    num_tiles = -(-(trees.offsets[1:] - trees.offsets[:-1]) * group // pairs)
    most_items = np.sum(num_tiles * cuts.num_shared)
    for path in range(len(paths.places)):
        segment, record, last = paths.places[path, 0], paths.places[path, 1], paths.places[path, 2]
        num_ranges = place_of(last) // cuts.segments[segment, 0] + 1 - cuts.num_shared[segment]
        most_items += -(-paths.records[record] * group // pairs) * num_ranges
    items, item = np.empty((most_items, ITEM_WORDS), np.int32), 0
    for segment in range(len(num_tiles)):
        stride, num_rows = cuts.segments[segment, 0], trees.offsets[segment + 1] - trees.offsets[segment]
        first_position = trees.prefix_lens[segment] + trees.num_written[segment]
        for number in range(cuts.num_shared[segment]):
            start, end = start_of(number * stride), start_of((number + 1) * stride)
            for tile in range(num_tiles[segment]):
                last_row = min(num_rows, ((tile + 1) * pairs + group - 1) // group) - 1
                if trees.is_chain[segment] and first_position + last_row < start:
                    continue
                _write(items[item], segment, tile * pairs, number, start, end, -1)
                item += 1
    for path in range(len(paths.places)):
        segment, record, last = paths.places[path, 0], paths.places[path, 1], paths.places[path, 2]
        stride = cuts.segments[segment, 0]
        for number in range(cuts.num_shared[segment], place_of(last) // stride + 1):
            start, end = start_of(number * stride), start_of((number + 1) * stride)
            for tile in range(-(-paths.records[record] * group // pairs)):
                _write(items[item], segment, tile * pairs, number, start, end, record)
                item += 1
    return items[:item]


@kernel
def _write(
    item: NDArray[np.int32], segment: int, first_pair: int, number: int, start: int, end: int, path: int
) -> None:
    item[0], item[1], item[2], item[3], item[4], item[5] = segment, first_pair, number, start, end, path
