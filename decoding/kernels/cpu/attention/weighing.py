"""Between the two products of a tile: scores are hidden or moved to the places of their positions, and weighed.

Sums and totals are those of weights exp(score - largest so far); they are scaled where a range has a larger one.
Invariant: a row's ranges begin at the same positions in a prompt, a chain and a tree.
"""

from __future__ import annotations

import numba as nb
import numpy as np

from decoding.kernels.cpu import lanes
from decoding.kernels.cpu.attention import weights
from decoding.kernels.cpu.attention.call_table import FIRST_SINK, GROUP, HAS_SINKS, VALUE_DIM
from decoding.kernels.cpu.attention.products import SOME
from decoding.kernels.cpu.attention.tile import Tile, first_visible, node_of
from decoding.kernels.cpu.attention.tile_scratch import WHOLE, address_of, fill, round_up, sum_widths
from decoding.kernels.cpu.lanes import LANES
from decoding.kernels.numba_kernel import kernel

NEVER = np.float32(-np.inf)
LOWEST = np.float32(-1e30)  # the largest score of nothing: finite, so that differences are numbers


@kernel(borrows=True)
def start_sums(tile: Tile) -> None:
    """Sums of nothing, or of the sink."""
    layer, sums = tile.layer.integers, tile.rooms.sums
    padded, width = sum_widths(layer[VALUE_DIM])
    fill(sums, 0, round_up(tile.num_pairs, SOME) * width, np.float32(0))
    for pair in range(tile.num_pairs):
        largest = pair * width + padded + LANES
        sums[largest] = LOWEST
        if layer[HAS_SINKS]:
            query_head = tile.head * layer[GROUP] + (tile.first_pair + pair) % layer[GROUP]
            sums[largest] = tile.layer.numbers[FIRST_SINK + query_head]
            sums[pair * width + padded] = np.float32(1)


@kernel(borrows=True)
def find_path(tile: Tile, node: int, start: int) -> int:
    """Write the slots of a node's path, from position `start` on, and return how many there are."""
    path, end = tile.rooms.path, tile.positions[node] + 1
    for position in range(end - 1, start - 1, -1):
        if position < tile.prefix_len:
            path[position - start] = position
        else:
            path[position - start] = tile.prefix_len + node
            node = tile.parents[node]
    return max(end - start, 0)


@kernel(borrows=True)
def follow_paths(tile: Tile, first: int) -> int:
    """Move each row's scores of its tree's slots to the places of their positions; return the last position's end.

    first: the slot whose scores begin the lines.
    """
    scores, path, end = tile.rooms.scores, tile.rooms.path, 0
    known_node, num_slots = -1, 0
    for pair in range(tile.num_pairs):
        node = node_of(tile, pair)
        if node != known_node:
            known_node, num_slots = node, find_path(tile, node, tile.prefix_len)
        line = pair * tile.score_width - first
        for place in range(num_slots):
            scores[line + tile.prefix_len + place] = scores[line + path[place]]
        end = max(end, tile.prefix_len + num_slots)
    return end


@nb.njit(inline="always")
def _hide(tile: Tile, first: int, keys: tuple[int, int]) -> None:
    """Set to minus infinity the scores of positions that a pair's row may not see, and of those after the last."""
    scores, (start, end) = tile.rooms.scores, keys
    end = start + round_up(end - start, WHOLE)
    for pair in range(tile.num_pairs):
        node = node_of(tile, pair)
        position = tile.positions[node]
        last = tile.prefix_len + node if tile.is_chain else position  # a chain's row may say another position
        line, low = pair * tile.score_width - first, first_visible(tile.layer.integers, position)
        fill(scores, line + start, line + min(low, end), NEVER)
        fill(scores, line + max(last + 1, start), line + end, NEVER)


@nb.njit(inline="always")
def weigh(tile: Tile, first: int, keys: tuple[int, int]) -> None:
    """Turn the scores of positions into weights. first: the position whose scores begin the lines. keys: the range, of
    one `RANGE`."""
    _hide(tile, first, keys)
    padded, width = sum_widths(tile.layer.integers[VALUE_DIM])
    sums, num_vectors = tile.rooms.sums, round_up(keys[1] - keys[0], WHOLE) // LANES
    for pair in range(tile.num_pairs):
        row, place = address_of(sums) + 4 * pair * width, pair * width + padded + LANES
        line = address_of(tile.rooms.scores) + 4 * (pair * tile.score_width + keys[0] - first)
        before = sums[place]
        largest = lanes.find_largest(line, num_vectors, before)
        if largest != before:
            lanes.scale(row, padded // LANES + 1, lanes.exp(before - largest))
            sums[place] = largest
        if tile.is_in_pairs:
            weights.weigh_pairs(line, num_vectors, largest, row + 4 * padded)
        else:
            weights.weigh(line, num_vectors, largest, row + 4 * padded)
