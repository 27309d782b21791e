# ruff: noqa: ARG001 - an intrinsic receives the types of its arguments, which the signature fixes anyway
"""Multiplies rows of records with packed panels: a thread's share of a call, for each width of codes and groups.

Invariant: an output has the same bits for any number of rows and threads, see `products`. Addresses are integers, in
bytes, which nothing checks.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numba as nb
import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, register_jitable

from decoding.kernels.cpu.lanes import (
    VECTOR,
    VECTOR_BYTES,
    Builder,
    Value,
    emit_load,
    emit_offset,
    emit_store,
    raise_counter,
)
from decoding.kernels.cpu.products.grouped.few_rows import FEW, take_few
from decoding.kernels.cpu.products.grouped.layout import HALF_BYTES, MOST_UNPACKED, ROW_RECORD, SPAN, STEP, Layout
from decoding.kernels.cpu.products.grouped.products import ROWS, TURNS, VECTORS, WIDE_BYTES, take_turn
from decoding.kernels.cpu.products.grouped.tiled import take_tiled_turn
from decoding.kernels.cpu.products.grouped.unpacking import unpack
from decoding.kernels.cpu.products.panels import MOST_ROWS, PANEL, PANEL_BYTES, PANEL_VECTORS, add, fill, room, write
from decoding.kernels.cpu.products.tiles import HAS_TILES, TILE_ROWS, release_tiles, shape_tiles, takes_tiles

# The fields of a call, each an int64. RECORD: bytes of a panel's block; FACTORS: float32 for each output; ZERO: the
# zero point of all groups, or -1 if they have minima.
SOURCE, TARGET, NUM_ROWS, COUNTER, WEIGHTS, RECORD, NUM_BLOCKS = range(7)
FACTORS, BIAS, NUM_OUTPUTS, CLAIM, ITEM, ZERO = range(7, 13)
NUM_FIELDS = 13
CHUNK = SPAN if HAS_TILES else 2  # blocks that are unpacked at a time, so that they stay in the L1 cache


@intrinsic
def _unpacked_room(_context: Any) -> Any:
    """Allocate room for the blocks of a chunk on the stack; return its address."""

    def codegen(_context: Any, builder: Builder, _signature: Any, _values: Any) -> Value:
        space = cgutils.alloca_once(builder, ir.ArrayType(VECTOR, CHUNK * MOST_UNPACKED // VECTOR_BYTES))
        return builder.ptrtoint(space, ir.IntType(64))

    return types.int64(), codegen


@intrinsic
def _times(_context: Any, vectors: Any, others: Any) -> Any:
    """A row's sums are multiplied by the outputs' factors."""

    def codegen(context: Any, builder: Builder, _signature: Any, values: Any) -> Value:
        vectors, others = values
        for place in range(PANEL_VECTORS):
            address, other = (emit_offset(builder, base, place * VECTOR_BYTES) for base in (vectors, others))
            product = builder.fmul(emit_load(builder, address, VECTOR), emit_load(builder, other, VECTOR))
            emit_store(builder, product, address)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), codegen


class Panel(NamedTuple):
    """64 outputs. start: its address; units: bytes before each span, of its units; sums: the address of its rows'."""

    start: int
    num_blocks: int
    record: int
    units: int
    zero: int
    sums: int


@register_jitable
def _span_of(panel: Panel, block: int) -> int:
    """The address of a block's span."""
    span: int = panel.start + block // SPAN * (panel.units + SPAN * panel.record)
    return span


@register_jitable
def _place_of(panel: Panel, block: int) -> int:
    place: int = panel.start + block * panel.record + (block // SPAN + 1) * panel.units
    return place


@nb.njit(inline="always")
def _sum_few(bits: Any, group: Any, scale_bytes: Any, panel: Panel, source: int, num_rows: int) -> None:
    """The sums, of up to `FEW` rows at a time."""
    source_step, block = panel.num_blocks * ROW_RECORD, 0
    while block < panel.num_blocks:
        count = min(SPAN, panel.num_blocks - block)
        for row in range(0, num_rows, FEW):
            take_few(
                bits,
                group,
                scale_bytes,
                min(FEW, num_rows - row),
                source + row * source_step + block * ROW_RECORD,
                source_step,
                _place_of(panel, block),
                panel.record,
                _span_of(panel, block),
                count,
                panel.zero,
                panel.sums + row * PANEL_BYTES,
            )
        block += count


class Chunk(NamedTuple):
    """Blocks of a panel that are unpacked together. packed: the address of the first; unpacked: where they are."""

    first: int
    size: int
    packed: int
    unpacked: int


@nb.njit(inline="always")
def _sum_rows(bits: Any, group: Any, scale_bytes: Any, panel: Panel, source: int, num_rows: int, unpacked: int) -> None:
    """The sums of any number of rows. unpacked: an address with room for a chunk."""
    block = 0
    while block < panel.num_blocks:
        count, packed = min(CHUNK, panel.num_blocks - block), _place_of(panel, block)
        unpack(bits, group, scale_bytes, packed, panel.record, _span_of(panel, block), unpacked, count, panel.zero)
        chunk = Chunk(block, count, packed, unpacked)
        if takes_tiles(num_rows, np.int8(0)):
            _add_in_tiles(bits, group, scale_bytes, panel, chunk, source, num_rows)
        else:
            _add_in_lanes(bits, group, scale_bytes, panel, chunk, source, num_rows)
        block += count
    release_tiles()


@nb.njit(inline="always")
def _add_in_lanes(
    bits: Any, group: Any, scale_bytes: Any, panel: Panel, chunk: Chunk, source: int, num_rows: int
) -> None:
    """A few rows and vectors at a time."""
    record, source_step = panel.record, panel.num_blocks * ROW_RECORD
    num_asked = (record // VECTOR_BYTES + TURNS - 1) // TURNS
    num_tiles = (num_rows + ROWS - 1) // ROWS
    asked = chunk.packed + 2 * chunk.size * record  # every turn prefetches its share of a later chunk
    asked_step = (VECTOR_BYTES + num_tiles - 1) // num_tiles
    row = 0
    while row < num_rows:
        left = num_rows - row
        rows = left if left <= ROWS else min(ROWS, (left + 1) // 2)  # so that the last has several
        shift = 0
        while shift < PANEL_BYTES:
            take_turn(
                bits,
                group,
                scale_bytes,
                rows,
                source + row * source_step + chunk.first * ROW_RECORD,
                source_step,
                chunk.packed + shift,
                record,
                chunk.unpacked + shift,
                chunk.size,
                panel.sums + row * PANEL_BYTES + shift,
                asked,
                asked_step,
            )
            shift += VECTORS * WIDE_BYTES
            asked += chunk.size * asked_step * num_asked
        row += rows


@nb.njit(inline="always")
def _add_in_tiles(
    bits: Any, group: Any, scale_bytes: Any, panel: Panel, chunk: Chunk, source: int, num_rows: int
) -> None:
    """Sixteen rows and all vectors at a time."""
    source_step, num_steps, sizes = panel.num_blocks * ROW_RECORD, group // STEP, 0
    for row in range(0, num_rows, TILE_ROWS):
        rows = min(TILE_ROWS, num_rows - row)
        sizes = shape_tiles(sizes, rows, num_steps)
        take_tiled_turn(
            bits,
            group,
            scale_bytes,
            rows,
            source + row * source_step + chunk.first * ROW_RECORD,
            source_step,
            chunk.packed,
            panel.record,
            chunk.unpacked,
            chunk.size,
            panel.sums + row * PANEL_BYTES,
        )


@nb.njit(inline="always")
def _multiply(call: Any, bits: Any, group: Any, scale_bytes: Any) -> None:
    """One thread's share of a call: it claims a few panels at a time until all are taken."""
    sums, unpacked = room(), _unpacked_room()
    counter = np.int64(call.ctypes.data) + 8 * COUNTER
    num_panels = (call[NUM_OUTPUTS] + PANEL - 1) // PANEL
    num_blocks, record, zero = call[NUM_BLOCKS], call[RECORD], call[ZERO]
    units = (2 - scale_bytes) * HALF_BYTES * PANEL * (2 if zero < 0 else 1)
    panel_bytes = num_blocks * record + (num_blocks + SPAN - 1) // SPAN * units
    source_step, target_step = num_blocks * ROW_RECORD, call[NUM_OUTPUTS] * call[ITEM]
    while True:
        first = raise_counter(counter, call[CLAIM])
        if first >= num_panels:
            return
        for number in range(first, min(first + call[CLAIM], num_panels)):
            panel = Panel(call[WEIGHTS] + number * panel_bytes, num_blocks, record, units, zero, sums)
            for start in range(0, call[NUM_ROWS], MOST_ROWS):
                num_rows = min(MOST_ROWS, call[NUM_ROWS] - start)
                source = call[SOURCE] + start * source_step
                fill(sums, num_rows * PANEL_VECTORS, np.float32(0))
                if FEW > 0 and (bits == 8 or num_rows <= FEW):
                    _sum_few(bits, group, scale_bytes, panel, source, num_rows)
                else:
                    _sum_rows(bits, group, scale_bytes, panel, source, num_rows, unpacked)
                target = call[TARGET] + start * target_step + number * PANEL * call[ITEM]
                num_left = min(PANEL, call[NUM_OUTPUTS] - number * PANEL)
                for row in range(num_rows):
                    total = sums + row * PANEL_BYTES
                    _times(total, call[FACTORS] + number * PANEL_BYTES)
                    if call[BIAS] != 0:
                        add(total, call[BIAS] + number * PANEL_BYTES, PANEL_VECTORS)
                    if call[ITEM] == HALF_BYTES:
                        write(total, target + row * target_step, num_left, np.uint16(0))
                    else:
                        write(total, target + row * target_step, num_left, np.float32(0))


def multiply_4_of_16(fields: Any) -> None:
    """One thread's share of a call with codes of 4 bits in groups of 16. The other functions have other widths."""
    _multiply(nb.carray(fields, NUM_FIELDS), 4, 16, 2)


def multiply_4_of_32(fields: Any) -> None:
    _multiply(nb.carray(fields, NUM_FIELDS), 4, 32, 2)


def multiply_5_of_16(fields: Any) -> None:
    _multiply(nb.carray(fields, NUM_FIELDS), 5, 16, 2)


def multiply_5_of_32(fields: Any) -> None:
    _multiply(nb.carray(fields, NUM_FIELDS), 5, 32, 2)


def multiply_6_of_16(fields: Any) -> None:
    _multiply(nb.carray(fields, NUM_FIELDS), 6, 16, 2)


def multiply_6_of_32(fields: Any) -> None:
    _multiply(nb.carray(fields, NUM_FIELDS), 6, 32, 2)


def multiply_8_of_16(fields: Any) -> None:
    _multiply(nb.carray(fields, NUM_FIELDS), 8, 16, 2)


def multiply_8_of_32(fields: Any) -> None:
    _multiply(nb.carray(fields, NUM_FIELDS), 8, 32, 2)


def multiply_4_of_32_in_spans(fields: Any) -> None:
    """The scales of 4 bits in groups of 32 are whole bytes, see `Layout`."""
    _multiply(nb.carray(fields, NUM_FIELDS), 4, 32, 1)


def multiply_5_of_32_in_spans(fields: Any) -> None:
    _multiply(nb.carray(fields, NUM_FIELDS), 5, 32, 1)


def multiply_6_of_16_in_spans(fields: Any) -> None:
    _multiply(nb.carray(fields, NUM_FIELDS), 6, 16, 1)


SHARES = {
    Layout(4, 16): multiply_4_of_16,
    Layout(4, 32): multiply_4_of_32,
    Layout(5, 16): multiply_5_of_16,
    Layout(5, 32): multiply_5_of_32,
    Layout(6, 16): multiply_6_of_16,
    Layout(6, 32): multiply_6_of_32,
    Layout(8, 16): multiply_8_of_16,
    Layout(8, 32): multiply_8_of_32,
    Layout(4, 32, 1): multiply_4_of_32_in_spans,
    Layout(5, 32, 1): multiply_5_of_32_in_spans,
    Layout(6, 16, 1): multiply_6_of_16_in_spans,
}
