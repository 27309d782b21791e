"""Keys and values in the form that products read: of the cache as they lie there, or staged in scratch.

Staged are values of odd widths, and all that is not float32: widened, or bfloat16 in pairs, keys as [D / 2, 16, 2] and
values as [keys / 2, V, 2], with a 0 for what is missing of the last pair.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from decoding.kernels.cpu import halves, lanes
from decoding.kernels.cpu.attention.call_table import FORMAT, KEY_DIM, VALUE_DIM
from decoding.kernels.cpu.attention.formats import FLOAT32, item_size, row_width, widen_keys, widen_values
from decoding.kernels.cpu.attention.products import NUM_BLOCKS, Blocks, Plane
from decoding.kernels.cpu.attention.tile import Tile
from decoding.kernels.cpu.attention.tile_scratch import ADDED_AT_ONCE, address_of, fill, round_up, sum_widths
from decoding.kernels.cpu.lanes import LANES, VECTOR_BYTES
from decoding.kernels.layout import BLOCK_LEN
from decoding.kernels.numba_kernel import kernel


@kernel
def blocks_of(plane: Plane, blocks: tuple[int, int], row_step: int, then: tuple[Plane, int]) -> Blocks:
    """blocks: the first one's place in the plane's table, and how many. then: what is read next, from a place on."""
    next_plane, place = then
    return Blocks(
        plane.table + 4 * blocks[0],
        plane.base,
        plane.block_step,
        blocks[1] - 1,
        row_step,
        next_plane.table + 4 * place,
        next_plane.base,
        next_plane.block_step,
    )


@kernel
def _number_at(table: int, place: int) -> Any:
    return np.int64(np.int32(lanes.load_word(table + 4 * place)))


@kernel
def _address(blocks: Blocks, place: int) -> Any:
    return blocks.base + _number_at(blocks.table, place) * blocks.block_step


@kernel
def _ahead(blocks: Blocks, place: int) -> Any:
    """The address to prefetch for a place: beyond the last block it is in the plane that is read next."""
    if place <= blocks.last:
        return _address(blocks, place)
    place = min(place - blocks.last - 1, blocks.last)
    return blocks.next_base + _number_at(blocks.next_table, place) * blocks.next_block_step


@kernel
def _staged(tile: Tile, count: int, block_bytes: int, row_step: int) -> Blocks:
    start, table = address_of(tile.rooms.staged), address_of(tile.layer.counting)
    return Blocks(table, start, block_bytes, count - 1, row_step, table, start, block_bytes)


@kernel(borrows=True)
def _stage_pairs(address: int, shape: tuple[int, int], ahead: int, target: int) -> None:
    """Rows side by side, which may be read a little beyond their end, in pairs. shape: rows and their width."""
    num_rows, width = shape
    count, step = round_up(width, LANES) // LANES, 2 * width
    halves.pair_up(address, step, num_rows // 2, count, ahead, target, 2 * step)
    if num_rows % 2:
        done = (num_rows - 1) * step
        halves.pair_with_zeros(address + done, step, 1, count, ahead, target + done, 2 * step)


@kernel(borrows=True)
def _end_pairs(tile: Tile, num_keys: int) -> None:
    """Zeros behind the staged pairs of so many values, as far as they are added in one go."""
    if tile.is_in_pairs:
        width = tile.layer.integers[VALUE_DIM]
        end = round_up(num_keys, ADDED_AT_ONCE) // 2
        fill(tile.rooms.staged, (num_keys + 1) // 2 * width, end * width, np.float32(0))


@kernel
def stage_keys(tile: Tile, source: Blocks, first: int) -> Blocks:
    """Up to `NUM_BLOCKS` blocks of keys from place `first` on, which are not float32."""
    width, kind = tile.layer.integers[KEY_DIM], tile.layer.integers[FORMAT]
    num_steps = (width + 1) // 2 if tile.is_in_pairs else width
    num_lines = round_up(num_steps, ADDED_AT_ONCE // 2) if tile.is_in_pairs else num_steps
    count, step = min(source.last + 1 - first, NUM_BLOCKS), num_lines * VECTOR_BYTES
    for place in range(count):
        address, target = _address(source, first + place), address_of(tile.rooms.staged) + step * place
        ahead = _ahead(source, first + place + NUM_BLOCKS)
        if not tile.is_in_pairs:
            widen_keys(kind, address, ahead, width, target)
        else:
            _stage_pairs(address, (width, LANES), ahead, target)
            line = num_lines * place
            fill(tile.rooms.staged, (line + num_steps) * LANES, (line + num_lines) * LANES, np.float32(0))
    return _staged(tile, count, step, 0)


@kernel
def stage_values(tile: Tile, source: Blocks, first: int, num_keys: int) -> Blocks:
    """The blocks of `num_keys` values, of which there are up to `NUM_BLOCKS`, from place `first` on."""
    width, kind = tile.layer.integers[VALUE_DIM], tile.layer.integers[FORMAT]
    raw, count = address_of(tile.rooms.raw), round_up(num_keys, BLOCK_LEN) // BLOCK_LEN
    step = (2 if tile.is_in_pairs else 4) * width * BLOCK_LEN
    for place in range(count):
        address, target = _address(source, first + place), address_of(tile.rooms.staged) + step * place
        ahead = _ahead(source, first + place + NUM_BLOCKS)
        if width % LANES and kind != FLOAT32:  # a row's last vector must not be read beyond the plane
            lanes.copy_bytes(raw, address, row_width(kind, width) * item_size(kind) * BLOCK_LEN)
            address = raw
        if kind == FLOAT32:
            lanes.copy_bytes(target, address, step)
        elif not tile.is_in_pairs:
            widen_values(kind, address, ahead, (BLOCK_LEN, width), target)
        else:
            _stage_pairs(address, (min(num_keys - place * BLOCK_LEN, BLOCK_LEN), width), ahead, target)
    _end_pairs(tile, num_keys)
    return _staged(tile, count, step, 4 * width)


@kernel
def stage_path(tile: Tile, first: int, num_keys: int) -> Blocks:
    """The values of a path's slots, `num_keys` of them from place `first` on."""
    width, kind = tile.layer.integers[VALUE_DIM], tile.layer.integers[FORMAT]
    raw, staged, size = (
        address_of(tile.rooms.raw),
        address_of(tile.rooms.staged),
        row_width(kind, width) * item_size(kind),
    )
    for key in range(0, num_keys, BLOCK_LEN):
        count = min(num_keys - key, BLOCK_LEN)
        for row in range(count):
            block, place = divmod(tile.rooms.path[first + key + row], BLOCK_LEN)
            address = tile.values.base + np.int64(tile.table[block]) * tile.values.block_step + place * size
            lanes.copy_bytes(raw + row * size, address, size)
        if kind == FLOAT32:
            lanes.copy_bytes(staged + 4 * width * key, raw, size * count)
        elif tile.is_in_pairs:
            _stage_pairs(raw, (count, width), raw, staged + 2 * width * key)
        else:
            widen_values(kind, raw, raw, (count, width), staged + 4 * width * key)
    _end_pairs(tile, num_keys)
    step = (2 if tile.is_in_pairs else 4) * width * BLOCK_LEN
    return _staged(tile, NUM_BLOCKS, step, 4 * width)


@kernel(borrows=True)
def must_stage_values(tile: Tile) -> bool:
    width = tile.layer.integers[VALUE_DIM]
    return tile.layer.integers[FORMAT] != FLOAT32 or width != sum_widths(width)[0]
