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

SPLIT = 512  # the length of the first ranges
OCTAVE = 16  # so many ranges are as long; each further octave's are twice as long as those of the one before
MOST_RANGES = 128  # of a segment, the last of which has no end
ROW_WORDS = 5  # ranges that are to be merged, partial sums that each may have, the row's first, its places, its position
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

    forks: a multiple of the keys of a block; from this position on a tree's keys are listed by paths. NO_END for chains.
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


class Tile(NamedTuple):
    """Pairs of a segment, or of a path of its tree. first, last: positions of their rows."""

    segment: int
    num_rows: int
    first_pair: int
    first: int
    last: int
    path: int
    base: int


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
        last = np.max(trees.positions_P[first:end])
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
    rows, num_places = np.empty((trees.offsets[-1], ROW_WORDS), np.int32), np.sum(cuts.segments[:, 6] * cuts.segments[:, 7])
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
            start, end, own = start_of(number * stride), start_of((number + 1) * stride), places[place : place + most_parts]
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


@kernel
def list_paths(trees: Trees, cuts: Cuts) -> Paths:
    """Each row behind its segment's fork is in one path, and in order of position there."""
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
        start = cuts.forks[segment]
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
def tile_of(num_pairs: int, is_chain: bool, tiling: Tiling) -> int:
    """The pairs of the tiles that so many pairs are divided among."""
    return tiling.many if is_chain and 0 < tiling.many <= num_pairs else tiling.pairs


@kernel
def list_items(trees: Trees, cuts: Cuts, paths: Paths, tiling: Tiling, pairs: int) -> NDArray[np.int32]:
    """int32 [I, 16]: the items in tiles of so many pairs, ordered so that tiles of the same keys follow each other and
    find them in the cache. A path's place is counted from the first path's."""
    items, count = np.empty((16, ITEM_WORDS), np.int32), 0
    for segment in range(len(cuts.forks)):
        num_rows, is_chain = trees.offsets[segment + 1] - trees.offsets[segment], trees.is_chain[segment]
        if tile_of(num_rows * tiling.group, is_chain, tiling) != pairs:
            continue
        first_node = trees.tree_offsets[segment] + trees.num_written[segment]
        positions = trees.positions_P[first_node : trees.tree_offsets[segment + 1]]
        for piece in _pieces(cuts, segment, np.max(positions), tiling.keys):
            for first_pair in range(0, num_rows * tiling.group, pairs):
                first, last = first_pair // tiling.group, min(num_rows, -(-(first_pair + pairs) // tiling.group)) - 1
                first_position = positions[first] if is_chain else np.min(positions)  # a tree's are in no order
                last_position = positions[last] if is_chain else np.max(positions)
                tile = Tile(segment, num_rows, first_pair, first_position, last_position, -1, NO_END)
                items, count = _add(items, count, trees, cuts, tile, piece)
    for path in range(len(paths.places) if pairs == tiling.pairs else 0):
        segment, record = paths.places[path, 0], paths.places[path, 1]
        num_rows, base = paths.records[record], paths.records[record + 1]
        first_node = trees.tree_offsets[segment] + trees.num_written[segment]
        positions = trees.positions_P[first_node + paths.records[record + 2 : record + 2 + num_rows]]
        tail, place = cuts.segments[segment, 5], cuts.segments[segment, 1] * cuts.segments[segment, 3] + 1
        for start in range(cuts.forks[segment], positions[num_rows - 1] + 1, tiling.keys):
            piece = start, start + tiling.keys, place + (start - tail) // tiling.keys
            for first_pair in range(0, num_rows * tiling.group, pairs):
                first, last = first_pair // tiling.group, min(num_rows, -(-(first_pair + pairs) // tiling.group)) - 1
                tile = Tile(segment, num_rows, first_pair, positions[first], positions[last], record, base)
                items, count = _add(items, count, trees, cuts, tile, piece)
    return items[:count]


@kernel
def _pieces(cuts: Cuts, segment: int, last: int, keys: int) -> list[tuple[int, int, int]]:
    """Those that all rows of a segment share, up to a position."""
    stride, num_ranges, _, parts, _, tail, _, _ = cuts.segments[segment]
    fork, pieces = cuts.forks[segment], [(0, 0, 0) for _ in range(0)]
    for number in range(num_ranges):
        start, end = start_of(number * stride), start_of((number + 1) * stride)
        length = keys if parts > 1 and end - start == SPLIT else end - start
        for part, begin in enumerate(range(start, min(end, last + 1), length)):
            pieces.append((begin, begin + length, number * parts + part))
    if tail < NO_END:
        begin, place = start_of(num_ranges * stride), num_ranges * parts
        if begin < tail:
            pieces.append((begin, int(tail), place))
        for begin in range(tail, fork, keys):
            pieces.append((begin, begin + keys, place + 1 + (begin - tail) // keys))
    return pieces


@kernel
def _add(
    items: NDArray[np.int32], count: int, trees: Trees, cuts: Cuts, tile: Tile, piece: tuple[int, int, int]
) -> tuple[NDArray[np.int32], int]:
    """One more item, if the tile sees any of the keys. Returned are the items, in an array that has room, and how many
    they are."""
    start, end, place = piece
    if start > tile.last:
        return items, count
    if count == len(items):
        items = np.concatenate((items, np.empty_like(items)))
    item, segment = items[count], tile.segment
    item[FIRST_ROW], item[NUM_ROWS] = trees.offsets[segment], tile.num_rows
    item[FIRST_PAIR], item[FIRST_POSITION] = tile.first_pair, tile.first
    item[TABLE] = trees.table_offsets[segment] - trees.table_offsets[-1]
    item[START], item[END] = start, min(end, tile.last + 1)
    item[PARTIAL], item[PARTIALS_EACH] = cuts.segments[segment, 2] + place, cuts.segments[segment, 4]
    item[IS_FIRST], item[PATH] = start == 0, tile.path
    item[BASE], item[LENGTH] = tile.base, trees.prefix_lens[segment]
    return items, count + 1
