"""Cuts a step's rows into tiles, and lists what is to be computed: tiles by keys. Compiled for the processor.

Invariant: a row is in one tile for each of its keys, and the keys of a tile lie in the order of their positions.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from decoding.kernels.gpu.work_list import (
    BASE,
    END,
    FIRST_PAIR,
    FIRST_POSITION,
    FIRST_ROW,
    IS_FIRST,
    ITEM_WORDS,
    LENGTH,
    NO_END,
    NUM_ROWS,
    PARTIAL,
    PARTIALS_EACH,
    PATH,
    SPLIT,
    START,
    TABLE,
    Bounds,
    Cuts,
    Tiling,
    Trees,
    cut,
    list_rows,
    start_of,
)
from decoding.kernels.numba_kernel import kernel


class Paths(NamedTuple):
    """records: int32, for the device: of each path its number of rows, the position from which on nodes are listed,
    the rows, the nodes. places: int32 [P, 3], of each path its segment, where its record begins, its last position."""

    records: NDArray[np.int32]
    places: NDArray[np.int32]


class Owner(NamedTuple):
    """What the tiles of a segment have in common: its first row in the step, where its block table begins, its first
    partial sum, those of a row, committed tokens."""

    first_row: int
    table: int
    partial: int
    each: int
    length: int


class Tile(NamedTuple):
    """Pairs of a segment, or of a path of its tree. first, last: positions of their rows."""

    num_rows: int
    first_pair: int
    first: int
    last: int
    path: int
    base: int


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
def list_step(trees: Trees, bounds: Bounds, lists: NDArray[np.int64]) -> tuple[NDArray[np.int32], int]:
    """The words of a step, see `attention.triton.work`, and its number of partial sums. lists: [L, 6], of each list the
    `Tiling` of its kind, and the pairs of its tiles."""
    finest = np.argmin(lists[:, 2])
    cuts = cut(trees, bounds, _tiling(lists, finest), np.max(lists[:, 2]))
    paths, (rows, places) = list_paths(trees, cuts), list_rows(trees, cuts, lists[finest, 2])
    header, count = np.empty(2 * len(lists) + 1, np.int32), 0
    items = np.empty((64 + np.sum(cuts.segments[:, 4]), ITEM_WORDS), np.int32)
    first = len(header) + rows.size + places.size
    for number in range(len(lists)):
        before = count
        items, count = list_items(items, count, trees, cuts, paths, _tiling(lists, number), lists[number, 5])
        header[2 * number], header[2 * number + 1] = count - before, first + before * ITEM_WORDS
    header[-1] = len(rows)
    rows[:, 3] += len(header) + rows.size
    for item in items[:count]:
        item[PATH] += first + count * ITEM_WORDS if item[PATH] >= 0 else 0
    words = np.concatenate((header, rows.ravel(), places.ravel(), items[:count].ravel(), paths.records))
    return words, cuts.num_partials


@kernel
def _tiling(lists: NDArray[np.int64], number: int) -> Tiling:
    own = lists[number]
    return Tiling(own[0], own[1], own[2], own[3], own[4])


@kernel
def list_items(
    items: NDArray[np.int32],
    count: int,
    trees: Trees,
    cuts: Cuts,
    paths: Paths,
    tiling: Tiling,
    pairs: int,
) -> tuple[NDArray[np.int32], int]:
    """Add the items in tiles of so many pairs, ordered so that tiles of the same keys follow each other and find them
    in the cache. A path's place is counted from the first path's."""
    pieces = np.empty((np.max(cuts.segments[:, 3] * cuts.segments[:, 7] + cuts.segments[:, 6]) + 1, 3), np.int64)
    for segment in range(len(cuts.forks)):
        num_rows, is_chain = trees.offsets[segment + 1] - trees.offsets[segment], trees.is_chain[segment]
        if tile_of(num_rows * tiling.group, is_chain, tiling) != pairs:
            continue
        first_node = trees.tree_offsets[segment] + trees.num_written[segment]
        positions = trees.positions_P[first_node : trees.tree_offsets[segment + 1]]
        nearest, farthest, owner = int(np.min(positions)), int(np.max(positions)), _owner(trees, cuts, segment)
        for piece in range(_pieces(cuts, segment, farthest, tiling.keys, pieces)):
            for first_pair in range(0, num_rows * tiling.group, pairs):
                tile = Tile(num_rows, first_pair, nearest, farthest, -1, NO_END)
                if is_chain:
                    first, last = rows_of(first_pair, pairs, tiling.group, num_rows)
                    tile = Tile(num_rows, first_pair, positions[first], positions[last], -1, NO_END)
                items, count = _add(items, count, owner, tile, pieces[piece, 0], pieces[piece, 1], pieces[piece, 2])
    for path in range(len(paths.places) if pairs == tiling.pairs else 0):
        segment, record = paths.places[path, 0], paths.places[path, 1]
        num_rows, base = paths.records[record], paths.records[record + 1]
        first_node = trees.tree_offsets[segment] + trees.num_written[segment]
        positions = trees.positions_P[first_node + paths.records[record + 2 : record + 2 + num_rows]]
        tail, place = cuts.segments[segment, 5], cuts.segments[segment, 1] * cuts.segments[segment, 3] + 1
        owner = _owner(trees, cuts, segment)
        for start in range(cuts.forks[segment], positions[num_rows - 1] + 1, tiling.keys):
            number = place + (start - tail) // tiling.keys
            for first_pair in range(0, num_rows * tiling.group, pairs):
                first, last = rows_of(first_pair, pairs, tiling.group, num_rows)
                tile = Tile(num_rows, first_pair, positions[first], positions[last], record, base)
                items, count = _add(items, count, owner, tile, start, start + tiling.keys, number)
    return items, count


@kernel
def rows_of(first_pair: int, pairs: int, group: int, num_rows: int) -> tuple[int, int]:
    """The first and the last row of a tile."""
    return first_pair // group, min(num_rows, -(-(first_pair + pairs) // group)) - 1


@kernel
def _pieces(cuts: Cuts, segment: int, last: int, keys: int, pieces: NDArray[np.int64]) -> int:
    """Write the keys that all rows of a segment share, up to a position, piece by piece: their first position, the last
    one + 1, their partial sum among those of a row. Returned is how many pieces there are."""
    count, fork, tail = 0, cuts.forks[segment], cuts.segments[segment, 5]
    stride, num_ranges, parts = cuts.segments[segment, 0], cuts.segments[segment, 1], cuts.segments[segment, 3]
    for number in range(num_ranges):
        start, end = start_of(number * stride), start_of((number + 1) * stride)
        length = keys if parts > 1 and end - start == SPLIT else end - start
        for part, begin in enumerate(range(start, min(end, last + 1), length)):
            count = _put(pieces, count, begin, begin + length, number * parts + part)
    if tail < NO_END:
        begin, place = start_of(num_ranges * stride), num_ranges * parts
        if begin < tail:
            count = _put(pieces, count, begin, tail, place)
        for begin in range(tail, fork, keys):
            count = _put(pieces, count, begin, begin + keys, place + 1 + (begin - tail) // keys)
    return count


@kernel
def _put(pieces: NDArray[np.int64], count: int, start: int, end: int, place: int) -> int:
    pieces[count, 0], pieces[count, 1], pieces[count, 2] = start, end, place
    return count + 1


@kernel
def _owner(trees: Trees, cuts: Cuts, segment: int) -> Owner:
    table = trees.table_offsets[segment] - trees.table_offsets[-1]
    partial, each = cuts.segments[segment, 2], cuts.segments[segment, 4]
    return Owner(trees.offsets[segment], table, partial, each, trees.prefix_lens[segment])


@kernel
def _add(
    items: NDArray[np.int32], count: int, owner: Owner, tile: Tile, start: int, end: int, place: int
) -> tuple[NDArray[np.int32], int]:
    """One more item, if the tile sees any of the keys. Returned are the items, in an array that has room, and how many
    they are."""
    if start > tile.last:
        return items, count
    if count == len(items):
        items = np.concatenate((items, np.empty_like(items)))
    item = items[count]
    item[FIRST_ROW], item[NUM_ROWS], item[FIRST_PAIR] = owner.first_row, tile.num_rows, tile.first_pair
    item[FIRST_POSITION], item[TABLE] = tile.first, owner.table
    item[START], item[END] = start, min(end, tile.last + 1)
    item[PARTIAL], item[PARTIALS_EACH] = owner.partial + place, owner.each
    item[IS_FIRST], item[PATH], item[BASE], item[LENGTH] = start == 0, tile.path, tile.base, owner.length
    return items, count + 1
