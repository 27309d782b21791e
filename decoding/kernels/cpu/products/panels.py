# ruff: noqa: ARG001 - an intrinsic receives the types of its arguments, which the signature fixes anyway
"""Multiplies any number of rows with weights in panels of 64 outputs, which are read from memory once and in order.

A panel holds, for each step along the input, four bytes of each of its outputs side by side: one float32 weight, two
bfloat16 weights or four int8 weights. Addresses are integers, in bytes, which nothing checks.
Invariant: an output is the sum of blocks of a fixed number of steps, each summed in order of the input, whatever the
number of rows and threads.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numba as nb
import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, register_jitable

from decoding.kernels.cpu.halves import emit_halves, emit_pair_product
from decoding.kernels.cpu.lanes import (
    FLOAT,
    HALF_VECTOR,
    INT,
    INT_VECTOR,
    LANES,
    VECTOR,
    VECTOR_BYTES,
    Builder,
    Value,
    emit_address,
    emit_assembly,
    emit_call,
    emit_cases,
    emit_load,
    emit_offset,
    emit_prefetch,
    emit_rolled_loop,
    emit_splat,
    emit_store,
    emit_times,
    raise_counter,
)
from decoding.kernels.cpu.products.tiles import (
    TILE_ROWS,
    TILE_STEPS,
    release_tiles,
    shape_tiles,
    take_tiles,
    takes_tiles,
)
from decoding.kernels.numba_kernel import kernel
from decoding.kernels.processor import has_wide_registers, multiplies_halves, multiplies_wide_bytes

PANEL = 64  # outputs
STEP_BYTES = 4  # of the input
PANEL_VECTORS = PANEL // LANES
PANEL_BYTES = PANEL_VECTORS * VECTOR_BYTES  # bytes of a step's weights, and of a row's sums
# Rows and vectors of a panel in one turn: sums, weights and a factor must fit the processor's registers, 32 of sixteen
# numbers or 16 of eight. A lone row takes all vectors, since the additions to one vector wait for each other.
ROWS, VECTORS = 6, PANEL_VECTORS if has_wide_registers() else 1
CHUNK = 64  # steps whose weights stay in the L1 cache while several groups of rows read them
TILED_CHUNK = 256  # the same in tiles, whose totals are loaded and stored for each
AHEAD = 8192  # bytes between the weights that are read and those that are prefetched, if weights are read once
MOST_ROWS = 256  # the most rows that share a pass over a panel
# The fields of a call's table, each an int64.
SOURCE, TARGET, NUM_ROWS, COUNTER, WEIGHTS, BIAS, NUM_STEPS, BLOCK, LEAP, NUM_OUTPUTS, CLAIM, ITEM = range(12)
NUM_FIELDS = 12
ZERO = np.float32(0.0)
FLAGS = ir.VectorType(ir.IntType(1), LANES)


class Rows(NamedTuple):
    """Rows of the input: address of the first, bytes from one to the next, and how many."""

    start: int
    step: int
    num_rows: int


def _emit_halves(builder: Builder, pairs: Value) -> tuple[Value, Value]:
    """The first and the second bfloat16 number of each lane, as float32."""
    bits = builder.bitcast(pairs, INT_VECTOR)
    sixteen, high = (ir.Constant(INT_VECTOR, [number] * LANES) for number in (16, 0xFFFF0000))
    return builder.bitcast(builder.shl(bits, sixteen), VECTOR), builder.bitcast(builder.and_(bits, high), VECTOR)


def _emit_product(builder: Builder, tag: Any, total: Value, factor: Value, weights: Value) -> Value:
    """total + factor * weights in each lane: one product of float32, two of bfloat16, or four of bytes."""
    if tag == types.float32:
        return emit_call(builder, "fma", factor, weights, total)
    if tag == types.uint16 and multiplies_halves():
        return emit_pair_product(builder, total, factor, weights)
    if tag == types.uint16:
        for factors, others in zip(_emit_halves(builder, factor), _emit_halves(builder, weights), strict=True):
            total = emit_call(builder, "fma", factors, others, total)
        return total
    if multiplies_wide_bytes():
        return emit_assembly(builder, "vpdpbusd $3, $2, $0", "=v,0,v,v", VECTOR, total, factor, weights)
    halves = []
    for lanes in (range(LANES // 2), range(LANES // 2, LANES)):  # AVX_VNNI has the instruction for eight lanes only
        places = ir.Constant(ir.VectorType(INT, LANES // 2), list(lanes))
        parts = [builder.shuffle_vector(each, each, places) for each in (total, factor, weights)]
        halves.append(emit_assembly(builder, "{vex} vpdpbusd $3, $2, $0", "=x,0,x,x", parts[0].type, *parts))
    return builder.shuffle_vector(*halves, ir.Constant(INT_VECTOR, list(range(LANES))))


@register_jitable
def _vectors_at_a_time(num_rows: int) -> int:
    return PANEL_VECTORS if num_rows == 1 else VECTORS


def _emit_turn(builder: Builder, num_rows: int, tag: Any, values: list[Value]) -> None:
    """Add up `num_rows` rows' products with a few vectors of a panel, over some steps."""
    source, source_step, weights, num_steps, sums, asked, asked_step, _ = values
    num_vectors = _vectors_at_a_time(num_rows)
    rows = [builder.add(source, emit_times(builder, source_step, row)) for row in range(num_rows)]
    places = [
        [emit_offset(builder, sums, row * PANEL_BYTES + place * VECTOR_BYTES) for place in range(num_vectors)]
        for row in range(num_rows)
    ]
    slots = [[cgutils.alloca_once_value(builder, emit_load(builder, place, VECTOR)) for place in row] for row in places]
    with emit_rolled_loop(builder, num_steps) as loop:
        start = emit_address(builder, weights, loop.index, PANEL_BYTES)
        vectors = [emit_offset(builder, start, VECTOR_BYTES * place) for place in range(num_vectors)]
        first_asked = builder.add(asked, builder.mul(builder.mul(loop.index, asked_step), asked_step.type(num_vectors)))
        for place in range(num_vectors):
            emit_prefetch(builder, builder.add(first_asked, emit_times(builder, asked_step, place)))
        loaded = [emit_load(builder, vector, VECTOR) for vector in vectors]
        for row, row_slots in zip(rows, slots, strict=True):
            number = emit_load(builder, emit_address(builder, row, loop.index, STEP_BYTES), FLOAT)
            factor = emit_splat(builder, number)
            for slot, vector in zip(row_slots, loaded, strict=True):
                builder.store(_emit_product(builder, tag, builder.load(slot), factor, vector), slot)
    for row, row_slots in zip(places, slots, strict=True):
        for place, slot in zip(row, row_slots, strict=True):
            emit_store(builder, builder.load(slot), place)


@intrinsic
def take_turn(
    _context: Any,
    num_rows: Any,
    source: Any,
    source_step: Any,
    weights: Any,
    num_steps: Any,
    sums: Any,
    asked: Any,
    asked_step: Any,
    tag: Any,
) -> Any:
    """sums[r] += row r * weights for 1 to `ROWS` rows, `source_step` bytes apart.

    asked: the first address to prefetch; one for each vector that is read, `asked_step` bytes apart. tag: float32,
    uint16 (bfloat16) or int8, the type of the weights; with int8 the rows hold unsigned bytes.
    """

    def codegen(context: Any, builder: Builder, _signature: Any, values: Any) -> Value:
        for count in emit_cases(builder, values[0], ROWS):
            _emit_turn(builder, count, tag, values[1:])
        return context.get_dummy_value()

    return types.void(*[types.int64] * 8, tag), codegen


@intrinsic
def room(_context: Any) -> Any:
    """Allocate sums for `MOST_ROWS` rows on the stack; return their address."""

    def codegen(_context: Any, builder: Builder, _signature: Any, _values: Any) -> Value:
        space = cgutils.alloca_once(builder, ir.ArrayType(VECTOR, MOST_ROWS * PANEL_VECTORS))
        return builder.ptrtoint(space, ir.IntType(64))

    return types.int64(), codegen


@intrinsic
def fill(_context: Any, vectors: Any, count: Any, number: Any) -> Any:
    """Set all numbers of `count` vectors."""

    def codegen(context: Any, builder: Builder, _signature: Any, values: Any) -> Value:
        vectors, count, number = values
        splat = emit_splat(builder, number)
        with cgutils.for_range(builder, count, intp=count.type) as loop:
            emit_store(builder, splat, emit_address(builder, vectors, loop.index, VECTOR_BYTES))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.float32), codegen


@intrinsic
def add(_context: Any, vectors: Any, others: Any, count: Any) -> Any:
    """vectors[i] += others[i] for `count` vectors."""

    def codegen(context: Any, builder: Builder, _signature: Any, values: Any) -> Value:
        vectors, others, count = values
        with cgutils.for_range(builder, count, intp=count.type) as loop:
            place, other = (emit_address(builder, base, loop.index, VECTOR_BYTES) for base in (vectors, others))
            total = builder.fadd(emit_load(builder, place, VECTOR), emit_load(builder, other, VECTOR))
            emit_store(builder, total, place)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 3), codegen


def emit_rounded(builder: Builder, numbers: Value) -> Value:
    """Round to bfloat16: to nearest, ties to even."""
    if multiplies_halves():
        return emit_halves(builder, numbers)
    bits = builder.bitcast(numbers, INT_VECTOR)
    shift, one, most = (ir.Constant(INT_VECTOR, [number] * LANES) for number in (16, 1, 0x7FFF))
    last = builder.and_(builder.lshr(bits, shift), one)
    rounded = builder.lshr(builder.add(builder.add(bits, most), last), shift)
    is_none = builder.fcmp_unordered("uno", numbers, numbers)
    rounded = builder.select(is_none, ir.Constant(INT_VECTOR, [0x7FC0] * LANES), rounded)
    return builder.trunc(rounded, HALF_VECTOR)


@intrinsic
def write(_context: Any, vectors: Any, target: Any, count: Any, tag: Any) -> Any:
    """Write the first `count` numbers of a row's sums as float32, or as bfloat16 if `tag` is uint16."""
    item, name = (2, "llvm.masked.store.v16i16.p0") if tag == types.uint16 else (4, "llvm.masked.store.v16f32.p0")

    def codegen(context: Any, builder: Builder, _signature: Any, values: Any) -> Value:
        vectors, target, count, _ = values
        for place in range(PANEL_VECTORS):
            left = builder.bitcast(builder.trunc(emit_offset(builder, count, -place * LANES), INT), FLOAT)
            last = builder.bitcast(emit_splat(builder, left), INT_VECTOR)
            flags = builder.icmp_signed("<", ir.Constant(INT_VECTOR, list(range(LANES))), last)
            numbers = emit_load(builder, emit_offset(builder, vectors, place * VECTOR_BYTES), VECTOR)
            if tag == types.uint16:
                numbers = emit_rounded(builder, numbers)
            pointer = numbers.type.as_pointer()
            kind = ir.FunctionType(ir.VoidType(), [numbers.type, pointer, INT, FLAGS])
            store = cgutils.get_or_insert_function(builder.module, kind, name)
            address = builder.inttoptr(emit_offset(builder, target, place * LANES * item), pointer)
            builder.call(store, [numbers, address, ir.Constant(INT, 2), flags])
        return context.get_dummy_value()

    return types.void(*[types.int64] * 3, tag), codegen


@kernel(borrows=True)
def _sum_in_tiles(rows: Rows, panel: int, start: int, end: int, sums: int, tag: Any) -> None:
    """The same in tiles, of up to 32 rows at a time."""
    sizes = 0
    while start < end:
        num_tiles = min(TILED_CHUNK, end - start) // TILE_STEPS
        num_steps = TILE_STEPS if num_tiles > 0 else end - start
        num_tiles = max(num_tiles, 1)
        weights = panel + start * PANEL_BYTES
        for row in range(0, rows.num_rows, 2 * TILE_ROWS):
            count = min(2 * TILE_ROWS, rows.num_rows - row)
            sizes = shape_tiles(sizes, count, num_steps)
            source, target = rows.start + row * rows.step + start * STEP_BYTES, sums + row * PANEL_BYTES
            if count <= TILE_ROWS:
                take_tiles(1, source, rows.step, weights, PANEL_BYTES, num_tiles, target, AHEAD, tag)
            else:
                for half in range(0, PANEL_BYTES, PANEL_BYTES // 2):
                    take_tiles(2, source, rows.step, weights + half, PANEL_BYTES, num_tiles, target + half, AHEAD, tag)
        start += num_tiles * num_steps
    release_tiles()


@kernel(borrows=True)
def sum_steps(rows: Rows, panel: int, start: int, end: int, sums: int, tag: Any) -> None:
    """sums[r] += row r * the panel, over the steps from `start` to `end`."""
    if takes_tiles(rows.num_rows, tag):
        _sum_in_tiles(rows, panel, start, end, sums, tag)
        return
    if rows.num_rows <= ROWS and _vectors_at_a_time(rows.num_rows) == PANEL_VECTORS:
        weights, source = panel + start * PANEL_BYTES, rows.start + start * STEP_BYTES
        take_turn(rows.num_rows, source, rows.step, weights, end - start, sums, weights + AHEAD, VECTOR_BYTES, tag)
        return
    num_groups = (rows.num_rows + ROWS - 1) // ROWS
    asked_step = (VECTOR_BYTES + num_groups - 1) // num_groups  # each turn prefetches its share of the next chunk
    while start < end:
        num_steps = min(CHUNK, end - start)
        weights = panel + start * PANEL_BYTES
        asked = weights + num_steps * PANEL_BYTES
        row = 0
        while row < rows.num_rows:
            left = rows.num_rows - row
            count = left if left <= ROWS else min(ROWS, (left + 1) // 2)  # so that the last turn has several rows
            source = rows.start + row * rows.step + start * STEP_BYTES
            num_vectors, shift = _vectors_at_a_time(count), 0
            while shift < PANEL_BYTES:
                turn_sums = sums + row * PANEL_BYTES + shift
                take_turn(count, source, rows.step, weights + shift, num_steps, turn_sums, asked, asked_step, tag)
                asked += num_steps * num_vectors * asked_step
                shift += num_vectors * VECTOR_BYTES
            row += count
        start += num_steps


@nb.njit(inline="always")
def _sum_panel(call: Any, weights: int, rows: Rows, sums: int, totals: int, tag: Any) -> None:
    """totals[r] = row r * the panel, as a sum of blocks."""
    num_vectors = rows.num_rows * PANEL_VECTORS
    start = 0
    while start < call[NUM_STEPS]:
        end = min(start + call[BLOCK], call[NUM_STEPS])
        block = totals if start == 0 else sums
        fill(block, num_vectors, ZERO)
        sum_steps(rows, weights, start, end, block, tag)
        if start > 0:
            add(totals, sums, num_vectors)
        start = end


@nb.njit(inline="always")
def _multiply(call: Any, tag: Any) -> None:
    """One thread's share of a call: it claims a few panels at a time until all are taken."""
    sums, totals = room(), room()
    counter = np.int64(call.ctypes.data) + 8 * COUNTER
    num_panels = (call[NUM_OUTPUTS] + PANEL - 1) // PANEL
    source_step, target_step = call[NUM_STEPS] * STEP_BYTES, call[NUM_OUTPUTS] * call[ITEM]
    while True:
        first = raise_counter(counter, call[CLAIM])
        if first >= num_panels:
            return
        for panel in range(first, min(first + call[CLAIM], num_panels)):
            weights = call[WEIGHTS] + panel * call[LEAP]
            num_left = call[NUM_OUTPUTS] - panel * PANEL
            for start in range(0, call[NUM_ROWS], MOST_ROWS):
                num_rows = min(MOST_ROWS, call[NUM_ROWS] - start)
                rows = Rows(call[SOURCE] + start * source_step, source_step, num_rows)
                _sum_panel(call, weights, rows, sums, totals, tag)
                target = call[TARGET] + start * target_step + panel * PANEL * call[ITEM]
                for row in range(num_rows):
                    total = totals + row * PANEL_BYTES
                    if call[BIAS] != 0:
                        add(total, call[BIAS] + panel * PANEL_BYTES, PANEL_VECTORS)
                    write(total, target + row * target_step, min(PANEL, num_left), tag)


def multiply_floats(fields: Any) -> None:
    """One thread's share of a call with float32 numbers."""
    _multiply(nb.carray(fields, NUM_FIELDS), np.float32(0))


def multiply_halves(fields: Any) -> None:
    """One thread's share of a call with bfloat16 numbers."""
    _multiply(nb.carray(fields, NUM_FIELDS), np.uint16(0))
