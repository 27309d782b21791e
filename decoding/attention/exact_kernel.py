"""The compiled half of exact attention: store a step's keys and values, then attend, in one call per layer.

A tile is up to sixteen (row, head) pairs of one request that share a kv head. Integer tables say where
everything lies; the constants below name their columns. Addresses and steps are in bytes.
Invariant: a lane adds its keys one by one in logical order, so neither tiles, blocks nor threads can change it.
"""

from __future__ import annotations

import numba as nb
import numpy as np
from numpy.typing import NDArray

from decoding.attention import lanes
from decoding.attention.lanes import IN_FLIGHT, LANES, VECTOR_BYTES
from decoding.tree import IntArray

BLOCK = 64  # keys converted to float32 at a time
NEVER = np.float32(-np.inf)
Table = NDArray[np.int64]
Floats = NDArray[np.float32]

# A segment: slot of its first key, committed tokens, its rows in the step.
START, PREFIX_LEN, FIRST_ROW, NUM_ROWS, IS_CHAIN = range(5)
# A layer: addresses of its planes [K, S, D], sizes, masks. ITEM_SIZE is 4 for float32, 2 for bfloat16.
KEYS, VALUES, NUM_SLOTS, NUM_KV_HEADS, GROUP, KEY_DIM, VALUE_DIM, ITEM_SIZE, WINDOW, CHUNK, HAS_SINKS = range(11)
SCALING, SOFTCAP, FIRST_SINK = range(3)
# A call: addresses, and steps from head to head and from row to row. OUT is [N, H, V], contiguous.
QUERY, QUERY_HEAD, QUERY_ROW, KEY, KEY_HEAD, KEY_ROW, VALUE, VALUE_HEAD, VALUE_ROW, OUT = range(10)
# A tile: its segment, its first (row, head) pair, how many.
TILE_SEGMENT, TILE_FIRST, TILE_LANES = range(3)


@nb.njit(cache=True)
def make_tiles(segments: Table, group: int) -> Table:
    """int64 [n, 3]: the (row, head) pairs of every segment, for one kv head, sixteen to a tile."""
    num_tiles = 0
    for segment in range(len(segments)):
        num_tiles += (segments[segment, NUM_ROWS] * group + LANES - 1) // LANES
    tiles = np.empty((num_tiles, 3), np.int64)
    tile = 0
    for segment in range(len(segments)):
        num_pairs = segments[segment, NUM_ROWS] * group
        for first in range(0, num_pairs, LANES):
            tiles[tile, TILE_SEGMENT] = segment
            tiles[tile, TILE_FIRST] = first
            tiles[tile, TILE_LANES] = min(LANES, num_pairs - first)
            tile += 1
    return tiles


@nb.njit(cache=True)
def scratch_words(num_keys: int, key_dim: int, value_dim: int) -> int:
    """float32 words that one tile needs: scores, query, result, three lane arrays and a converted block."""
    padded_keys = num_keys + 2 * IN_FLIGHT
    return LANES * (padded_keys + key_dim + value_dim + 4) + (BLOCK + IN_FLIGHT) * max(key_dim, value_dim)


@nb.njit(cache=True)
def _address(array: Floats) -> int:
    return np.int64(array.ctypes.data)  # signed: numba adds signed and unsigned as floats


@nb.njit(cache=True)
def _store_rows(call: Table, layer: Table, segments: Table) -> None:
    item = layer[ITEM_SIZE]
    key_bytes, value_bytes = layer[KEY_DIM] * item, layer[VALUE_DIM] * item
    for segment in range(len(segments)):
        first_slot = segments[segment, START] + segments[segment, PREFIX_LEN]
        for head in range(layer[NUM_KV_HEADS]):
            for index in range(segments[segment, NUM_ROWS]):
                row, slot = segments[segment, FIRST_ROW] + index, head * layer[NUM_SLOTS] + first_slot + index
                key = call[KEY] + head * call[KEY_HEAD] + row * call[KEY_ROW]
                lanes.copy_bytes(layer[KEYS] + slot * key_bytes, key, key_bytes)
                value = call[VALUE] + head * call[VALUE_HEAD] + row * call[VALUE_ROW]
                lanes.copy_bytes(layer[VALUES] + slot * value_bytes, value, value_bytes)


@nb.njit(cache=True)
def _first_visible(layer: Table, position: int) -> int:
    first = max(0, position - layer[WINDOW] + 1) if layer[WINDOW] > 0 else 0
    return max(first, position // layer[CHUNK] * layer[CHUNK]) if layer[CHUNK] > 0 else first


@nb.njit(cache=True)
def _load_query(call: Table, layer: Table, tile: Table, first_row: int, head: int, query: Floats) -> None:
    """query [D, LANES]: the tile's queries side by side, zeros in unused lanes."""
    group, width = layer[GROUP], layer[KEY_DIM]
    for lane in range(LANES):
        pair = tile[TILE_FIRST] + lane
        address = call[QUERY] + (head * group + pair % group) * call[QUERY_HEAD]
        address += (first_row + pair // group) * call[QUERY_ROW]
        if lane >= tile[TILE_LANES]:
            for column in range(width):
                query[column * LANES + lane] = 0
        elif layer[ITEM_SIZE] == 4:
            for column in range(width):
                query[column * LANES + lane] = lanes.load_float(address + 4 * column)
        else:
            for column in range(width):
                bits = np.int64(lanes.load_half(address + 2 * column)) << 16
                query[column * LANES + lane] = lanes.float_of_bits(bits)


@nb.njit(cache=True)
def _save(call: Table, layer: Table, tile: Table, first_row: int, head: int, result: Floats, total: Floats) -> None:
    group, width = layer[GROUP], layer[VALUE_DIM]
    num_heads = layer[NUM_KV_HEADS] * group
    for lane in range(tile[TILE_LANES]):
        pair = tile[TILE_FIRST] + lane
        row = (first_row + pair // group) * num_heads + head * group + pair % group
        address = call[OUT] + row * width * layer[ITEM_SIZE]
        share = np.float32(1) / total[lane]
        if layer[ITEM_SIZE] == 4:
            for column in range(width):
                lanes.store_float(address + 4 * column, result[column * LANES + lane] * share)
        else:
            for column in range(width):
                bits = lanes.bits_of_float(result[column * LANES + lane] * share)
                rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16  # to the nearest, ties to even
                lanes.store_half(address + 2 * column, np.uint16(rounded))


@nb.njit(cache=True)
def _hide(scores: Floats, lane: int, start: int, end: int) -> None:
    for key in range(start, end):
        scores[key * LANES + lane] = NEVER


@nb.njit(cache=True)
def _mask(
    layer: Table, tile: Table, segment: Table, rows: tuple[IntArray, Table], window: tuple[int, int], scores: Floats
) -> None:
    """Hide from each lane what its row may not see among the keys `window[0]` to `window[1]`."""
    parents_M, positions_M = rows
    start, end = window
    prefix_len, first_row = segment[PREFIX_LEN], segment[FIRST_ROW]
    for lane in range(tile[TILE_LANES]):
        row = (tile[TILE_FIRST] + lane) // layer[GROUP]
        low = _first_visible(layer, positions_M[first_row + row])
        if segment[IS_CHAIN]:  # a key's index is its position
            _hide(scores, lane, 0, low - start)
            _hide(scores, lane, prefix_len + row + 1 - start, end - start)
            continue
        _hide(scores, lane, 0, min(low, prefix_len) - start)
        node = row  # walk up, hiding everything between a node and its parent
        last = end - prefix_len - 1
        for other in range(last, -1, -1):
            is_seen = other == node and positions_M[first_row + other] >= low
            if other == node:
                node = parents_M[first_row + other]
            if not is_seen:
                scores[(prefix_len + other - start) * LANES + lane] = NEVER


@nb.njit(cache=True)
def _score(layer: Table, scaling: float, plane: int, count: int, query: int, scores: int, block: int) -> None:
    """Scores of `count` keys at `plane`, all lanes; also of up to 15 keys beyond, which nobody reads."""
    width, item = layer[KEY_DIM], layer[ITEM_SIZE]
    step = 4 * width
    for done in range(0, count, BLOCK):
        num_keys = min(BLOCK, count - done)
        keys = plane + done * width * item
        if item == 2:
            lanes.widen(keys, (num_keys * width + LANES - 1) // LANES, block)
            keys = block
        for key in range(0, num_keys, IN_FLIGHT):
            if item == 4:
                lanes.prefetch(keys + (key + 2 * IN_FLIGHT) * step, IN_FLIGHT * step)
            lanes.score_keys(query, keys + key * step, step, width, scaling, scores + (done + key) * VECTOR_BYTES)


@nb.njit(cache=True)
def _add_values(layer: Table, plane: int, count: int, weights: int, result: int, block: int) -> None:
    width, item = layer[VALUE_DIM], layer[ITEM_SIZE]
    step = 4 * width
    for done in range(0, count, BLOCK):
        num_keys = min(BLOCK, count - done)
        values, weight = plane + done * width * item, weights + done * VECTOR_BYTES
        if item == 2:
            lanes.widen(values, (num_keys * width + LANES - 1) // LANES, block)
            values = block
        else:
            lanes.prefetch(values + BLOCK * step, BLOCK * step)
        column = 0
        while column + IN_FLIGHT <= width:
            lanes.add_columns(weight, values + 4 * column, step, num_keys, result + column * VECTOR_BYTES)
            column += IN_FLIGHT
        for rest in range(column, width):
            lanes.add_column(weight, values + 4 * rest, step, num_keys, result + rest * VECTOR_BYTES)


@nb.njit(cache=True)
def _attend_tile(
    call: Table,
    layer: Table,
    numbers: Floats,
    segment: Table,
    rows: tuple[IntArray, Table],
    tile: Table,
    head: int,
    scratch: Floats,
) -> None:
    first_row, prefix_len = segment[FIRST_ROW], segment[PREFIX_LEN]
    first_pair, num_lanes = tile[TILE_FIRST], tile[TILE_LANES]
    last_row = (first_pair + num_lanes - 1) // layer[GROUP]
    start = prefix_len
    for row in range(first_pair // layer[GROUP], last_row + 1):
        start = min(start, _first_visible(layer, rows[1][first_row + row]))
    end = prefix_len + last_row + 1
    count = end - start

    key_dim, value_dim = layer[KEY_DIM], layer[VALUE_DIM]
    query = scratch[: key_dim * LANES]
    result = scratch[query.size : query.size + value_dim * LANES]
    used = query.size + result.size
    maximum, total, sink = (
        scratch[used : used + LANES],
        scratch[used + LANES : used + 2 * LANES],
        scratch[used + 2 * LANES : used + 3 * LANES],
    )
    used += 4 * LANES
    block = scratch[used : used + (BLOCK + IN_FLIGHT) * max(key_dim, value_dim)]
    scores = scratch[used + block.size :]

    _load_query(call, layer, tile, first_row, head, query)
    slot = head * layer[NUM_SLOTS] + segment[START] + start
    item = layer[ITEM_SIZE]
    _score(
        layer,
        numbers[SCALING],
        layer[KEYS] + slot * key_dim * item,
        count,
        _address(query),
        _address(scores),
        _address(block),
    )
    if numbers[SOFTCAP] > 0:
        lanes.soft_cap(_address(scores), count, numbers[SOFTCAP])
    _mask(layer, tile, segment, rows, (start, end), scores)

    result[:] = 0
    total[:] = 0
    maximum[:] = NEVER
    if layer[HAS_SINKS]:
        for lane in range(num_lanes):
            sink[lane] = numbers[FIRST_SINK + head * layer[GROUP] + (first_pair + lane) % layer[GROUP]]
            maximum[lane] = sink[lane]
    lanes.raise_maximum(_address(scores), count, _address(maximum))
    if layer[HAS_SINKS]:
        lanes.weigh(_address(sink), 1, _address(maximum), _address(total))
    lanes.weigh(_address(scores), count, _address(maximum), _address(total))
    _add_values(
        layer, layer[VALUES] + slot * value_dim * item, count, _address(scores), _address(result), _address(block)
    )
    _save(call, layer, tile, first_row, head, result, total)


@nb.njit(cache=True)
def attend_serial(call, layer, numbers, segments, rows, tiles, scratch):
    _store_rows(call, layer, segments)
    for task in range(len(tiles) * layer[NUM_KV_HEADS]):
        tile = tiles[task // layer[NUM_KV_HEADS]]
        _attend_tile(
            call, layer, numbers, segments[tile[TILE_SEGMENT]], rows, tile, task % layer[NUM_KV_HEADS], scratch[0]
        )


@nb.njit(cache=True, parallel=True)
def attend_parallel(call, layer, numbers, segments, rows, tiles, scratch):
    _store_rows(call, layer, segments)
    num_heads = layer[NUM_KV_HEADS]
    for task in nb.prange(len(tiles) * num_heads):
        tile = tiles[task // num_heads]
        _attend_tile(
            call,
            layer,
            numbers,
            segments[tile[TILE_SEGMENT]],
            rows,
            tile,
            task % num_heads,
            scratch[nb.get_thread_id()],
        )
