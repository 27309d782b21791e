# ruff: noqa: ARG001 - an intrinsic receives the types of its arguments, which the signature fixes anyway
"""Multiplies rows of the input with int8 weights in panels of 64 outputs; complete integer sums are then scaled.

A row is scaled so that its largest number becomes 127. Its integers are stored plus 128, since the instructions want
them unsigned, so each sum begins at -128 times the sum of the output's weights. Addresses are integers, in bytes.
Invariant: sums are exact, so an output's bits depend on its row and weights alone.
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
    FLOAT,
    INT_VECTOR,
    VECTOR,
    VECTOR_BYTES,
    Builder,
    Value,
    emit_address,
    emit_load,
    emit_splat,
    emit_store,
    pointer,
    raise_counter,
)
from decoding.kernels.cpu.products.panels import (
    MOST_ROWS,
    PANEL,
    PANEL_BYTES,
    PANEL_VECTORS,
    STEP_BYTES,
    Rows,
    add,
    room,
    sum_steps,
    write,
)
from decoding.kernels.numba_kernel import kernel

# The fields of a multiplication's call, each an int64. STARTS: int32 for each output; SCALES: float32 for each output.
SOURCE, TARGET, NUM_ROWS, COUNTER, ROW_SCALES, WEIGHTS, BIAS = range(7)
NUM_STEPS, STARTS, SCALES, NUM_OUTPUTS, CLAIM, ITEM = range(7, 13)
NUM_FIELDS = 13
# The fields of a call that rounds rows to integers.
NUMBERS, INTEGERS, NUM_NUMBERS, _COUNTER, SCALES_OF_ROWS, WIDTH, PADDED_WIDTH, NUMBER_BYTES = range(8)
NUM_ROUNDING_FIELDS = 8
ROWS_AT_A_TIME = 8
LARGEST, ZERO_POINT = 127, 128
SIZE_BITS = np.uint32(0x7FFFFFFF)


@intrinsic
def _copy(_context: Any, vectors: Any, others: Any, count: Any) -> Any:
    """Copy `count` vectors from `others` to `vectors`."""

    def codegen(context: Any, builder: Builder, _signature: Any, values: Any) -> Value:
        vectors, others, count = values
        with cgutils.for_range(builder, count, intp=count.type) as loop:
            other = emit_load(builder, emit_address(builder, others, loop.index, VECTOR_BYTES), VECTOR)
            emit_store(builder, other, emit_address(builder, vectors, loop.index, VECTOR_BYTES))
        return context.get_dummy_value()

    return types.void(*[types.int64] * 3), codegen


@intrinsic
def _scale(_context: Any, sums: Any, scales: Any, row_scale: Any) -> Any:
    """Convert a row's int32 sums to float32, multiply by the outputs' scales, then by the row's scale."""

    def codegen(context: Any, builder: Builder, _signature: Any, values: Any) -> Value:
        sums, scales, row_scale = values
        factor = emit_splat(builder, emit_load(builder, row_scale, FLOAT))
        for place in range(PANEL_VECTORS):
            shift = ir.Constant(sums.type, place * VECTOR_BYTES)
            address = builder.add(sums, shift)
            whole = builder.sitofp(emit_load(builder, address, INT_VECTOR), VECTOR)
            scaled = builder.fmul(whole, emit_load(builder, builder.add(scales, shift), VECTOR))
            emit_store(builder, builder.fmul(scaled, factor), address)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 3), codegen


@nb.njit(inline="always")
def _multiply(call: Any, tag: Any) -> None:
    """One thread's share of a call. tag: the type of the outputs."""
    sums = room()
    counter = np.int64(call.ctypes.data) + 8 * COUNTER
    num_panels = (call[NUM_OUTPUTS] + PANEL - 1) // PANEL
    source_step, target_step = call[NUM_STEPS] * STEP_BYTES, call[NUM_OUTPUTS] * call[ITEM]
    panel_weights = call[NUM_STEPS] * PANEL_BYTES
    while True:
        first = raise_counter(counter, call[CLAIM])
        if first >= num_panels:
            return
        for panel in range(first, min(first + call[CLAIM], num_panels)):
            shift = panel * PANEL_BYTES
            num_left = call[NUM_OUTPUTS] - panel * PANEL
            for start in range(0, call[NUM_ROWS], MOST_ROWS):
                num_rows = min(MOST_ROWS, call[NUM_ROWS] - start)
                for row in range(num_rows):
                    _copy(sums + row * PANEL_BYTES, call[STARTS] + shift, PANEL_VECTORS)
                rows = Rows(call[SOURCE] + start * source_step, source_step, num_rows)
                sum_steps(rows, call[WEIGHTS] + panel * panel_weights, 0, call[NUM_STEPS], sums, np.int8(0))
                target = call[TARGET] + start * target_step + panel * PANEL * call[ITEM]
                for row in range(num_rows):
                    total = sums + row * PANEL_BYTES
                    _scale(total, call[SCALES] + shift, call[ROW_SCALES] + (start + row) * 4)
                    if call[BIAS] != 0:
                        add(total, call[BIAS] + shift, PANEL_VECTORS)
                    write(total, target + row * target_step, min(PANEL, num_left), tag)


@kernel
def _round_row(bits: Any, integers: Any, width: int) -> Any:
    """Round a row to integers, its largest number to 127, and return the scale. bits: the row's float32 bits."""
    largest = np.uint32(0)
    for place in range(width):
        largest = max(largest, bits[place] & SIZE_BITS)  # without the sign, bits sort like magnitudes; NaN is largest
    pair = np.empty(1, np.uint32)
    pair[0] = largest
    size = pair.view(np.float32)[0]
    factor = np.float32(LARGEST) / size if size > 0 else np.float32(0)
    numbers = bits.view(np.float32)
    for place in range(width):
        integers[place] = np.uint8(np.int32(np.rint(numbers[place] * factor)) + ZERO_POINT)
    for place in range(len(integers) - width):
        integers[width + place] = ZERO_POINT
    return size / np.float32(LARGEST)


@nb.njit(inline="always")
def _round_rows(call: Any) -> None:
    """One thread's share of rounding rows to integers, a few rows at a time."""
    counter = np.int64(call.ctypes.data) + 8 * COUNTER
    width, num_rows = call[WIDTH], call[NUM_NUMBERS]
    is_half = call[NUMBER_BYTES] == 2
    bits = np.empty(width, np.uint32)
    scales = nb.carray(pointer(call[SCALES_OF_ROWS], np.float32(0)), num_rows)
    integers = nb.carray(pointer(call[INTEGERS], np.uint8(0)), (num_rows, call[PADDED_WIDTH]))
    while True:
        first = raise_counter(counter, ROWS_AT_A_TIME)
        if first >= num_rows:
            return
        for row in range(first, min(first + ROWS_AT_A_TIME, num_rows)):
            if is_half:
                halves = nb.carray(pointer(call[NUMBERS], np.uint16(0)), (num_rows, width))
                for place in range(width):
                    bits[place] = np.uint32(halves[row, place]) << np.uint32(16)
            else:
                whole = nb.carray(pointer(call[NUMBERS], np.uint32(0)), (num_rows, width))
                for place in range(width):
                    bits[place] = whole[row, place]
            scales[row] = _round_row(bits, integers[row], width)


def multiply_to_floats(fields: Any) -> None:
    """One thread's share of a call whose outputs are float32."""
    _multiply(nb.carray(fields, NUM_FIELDS), np.float32(0))


def multiply_to_halves(fields: Any) -> None:
    """One thread's share of a call whose outputs are bfloat16."""
    _multiply(nb.carray(fields, NUM_FIELDS), np.uint16(0))


def round_rows(fields: Any) -> None:
    """One thread's share of a call that rounds float32 or bfloat16 rows to integers."""
    _round_rows(nb.carray(fields, NUM_ROUNDING_FIELDS))
