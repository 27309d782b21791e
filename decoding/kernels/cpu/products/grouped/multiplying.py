# ruff: noqa: ARG001 - an intrinsic receives the types of its arguments, which the signature fixes anyway
"""Multiplies rows of records with packed panels: a thread's share of a call, for each width of codes and groups.

Invariant: an output has the same bits for any number of rows and threads, see `products`. Addresses are integers, in
bytes, which nothing checks.
"""

from __future__ import annotations

from typing import Any

import numba as nb
import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

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
from decoding.kernels.cpu.products.grouped.layout import HALF_BYTES, MOST_UNPACKED, ROW_RECORD
from decoding.kernels.cpu.products.grouped.products import ROWS, TURNS, VECTORS, WIDE_BYTES, take_turn
from decoding.kernels.cpu.products.grouped.unpacking import unpack
from decoding.kernels.cpu.products.panels import MOST_ROWS, PANEL, PANEL_BYTES, PANEL_VECTORS, add, fill, room, write

# The fields of a call, each an int64. RECORD: bytes of a panel's block; FACTORS: float32 for each output; ZERO: the
# zero point of all groups, or -1 if they have minima.
SOURCE, TARGET, NUM_ROWS, COUNTER, WEIGHTS, RECORD, NUM_BLOCKS = range(7)
FACTORS, BIAS, NUM_OUTPUTS, CLAIM, ITEM, ZERO = range(7, 13)
NUM_FIELDS = 13
CHUNK = 2  # blocks that are unpacked at a time, so that they stay in the L1 cache


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


@nb.njit(inline="always")
def _multiply(call: Any, bits: Any, group: Any) -> None:
    """One thread's share of a call: it claims a few panels at a time until all are taken."""
    sums, unpacked = room(), _unpacked_room()
    counter = np.int64(call.ctypes.data) + 8 * COUNTER
    num_panels = (call[NUM_OUTPUTS] + PANEL - 1) // PANEL
    num_blocks, record = call[NUM_BLOCKS], call[RECORD]
    num_asked = (record // VECTOR_BYTES + TURNS - 1) // TURNS
    source_step, target_step = num_blocks * ROW_RECORD, call[NUM_OUTPUTS] * call[ITEM]
    while True:
        first = raise_counter(counter, call[CLAIM])
        if first >= num_panels:
            return
        for panel in range(first, min(first + call[CLAIM], num_panels)):
            weights = call[WEIGHTS] + panel * num_blocks * record
            for start in range(0, call[NUM_ROWS], MOST_ROWS):
                num_rows = min(MOST_ROWS, call[NUM_ROWS] - start)
                source = call[SOURCE] + start * source_step
                num_tiles = (num_rows + ROWS - 1) // ROWS
                fill(sums, num_rows * PANEL_VECTORS, np.float32(0))
                block = 0
                while block < num_blocks:
                    count = min(CHUNK, num_blocks - block)
                    unpack(bits, group, weights + block * record, record, unpacked, count, call[ZERO])
                    asked = weights + (block + 2 * count) * record  # every turn prefetches its share of a later chunk
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
                                rows,
                                source + row * source_step + block * ROW_RECORD,
                                source_step,
                                weights + block * record + shift,
                                record,
                                unpacked + shift,
                                count,
                                sums + row * PANEL_BYTES + shift,
                                asked,
                                asked_step,
                            )
                            shift += VECTORS * WIDE_BYTES
                            asked += count * asked_step * num_asked
                        row += rows
                    block += count
                target = call[TARGET] + start * target_step + panel * PANEL * call[ITEM]
                num_left = min(PANEL, call[NUM_OUTPUTS] - panel * PANEL)
                for row in range(num_rows):
                    total = sums + row * PANEL_BYTES
                    _times(total, call[FACTORS] + panel * PANEL_BYTES)
                    if call[BIAS] != 0:
                        add(total, call[BIAS] + panel * PANEL_BYTES, PANEL_VECTORS)
                    if call[ITEM] == HALF_BYTES:
                        write(total, target + row * target_step, num_left, np.uint16(0))
                    else:
                        write(total, target + row * target_step, num_left, np.float32(0))


def multiply_4_of_16(fields: Any) -> None:
    """One thread's share of a call with codes of 4 bits in groups of 16. The other functions have other widths."""
    _multiply(nb.carray(fields, NUM_FIELDS), 4, 16)


def multiply_4_of_32(fields: Any) -> None:
    _multiply(nb.carray(fields, NUM_FIELDS), 4, 32)


def multiply_5_of_16(fields: Any) -> None:
    _multiply(nb.carray(fields, NUM_FIELDS), 5, 16)


def multiply_5_of_32(fields: Any) -> None:
    _multiply(nb.carray(fields, NUM_FIELDS), 5, 32)


def multiply_6_of_16(fields: Any) -> None:
    _multiply(nb.carray(fields, NUM_FIELDS), 6, 16)


def multiply_6_of_32(fields: Any) -> None:
    _multiply(nb.carray(fields, NUM_FIELDS), 6, 32)


def multiply_8_of_16(fields: Any) -> None:
    _multiply(nb.carray(fields, NUM_FIELDS), 8, 16)


def multiply_8_of_32(fields: Any) -> None:
    _multiply(nb.carray(fields, NUM_FIELDS), 8, 32)


SHARES = {
    (4, 16): multiply_4_of_16,
    (4, 32): multiply_4_of_32,
    (5, 16): multiply_5_of_16,
    (5, 32): multiply_5_of_32,
    (6, 16): multiply_6_of_16,
    (6, 32): multiply_6_of_32,
    (8, 16): multiply_8_of_16,
    (8, 32): multiply_8_of_32,
}
