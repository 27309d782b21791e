# ruff: noqa: ARG001 - an intrinsic receives the types of its arguments, which the signature fixes anyway
"""Rounds rows of activations to records of signed bytes, one for each block of the input.

Knows no weights. Addresses are integers, in bytes, which nothing checks.
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
    HALF_VECTOR,
    INT,
    INT_VECTOR,
    LANES,
    VECTOR,
    VECTOR_BYTES,
    Builder,
    Value,
    copy_bytes,
    emit_constant,
    emit_load,
    emit_offset,
    emit_splat,
    emit_store,
    raise_counter,
)
from decoding.kernels.cpu.products.grouped.layout import (
    BLOCK,
    HALF_BYTES,
    MIDDLE,
    MIDDLE_PLACES,
    ROW_RECORD,
    SCALE_PLACE,
    SUM_PLACES,
)
from decoding.kernels.cpu.products.grouped.unpacking import emit_ints

# The fields of a call, each an int64.
SOURCE, TARGET, NUM_ROWS, COUNTER, WIDTH, NUM_BLOCKS, ITEM = range(7)
NUM_FIELDS = 7
LARGEST, SMALLEST = 127.0, 1e-30  # numbers are rounded to -127..127; blocks of smaller numbers become zeros
MAGIC = 12582912.0  # 1.5 * 2**23: added to a small float32 it leaves the nearest integer in the low bits
ROWS_AT_A_TIME = 8


def _emit_reduced(builder: Builder, vector: Value, operation: str) -> Value:
    """One number from sixteen integers. operation: "add" or "smax"."""
    kind = ir.FunctionType(INT, [INT_VECTOR])
    name = f"llvm.vector.reduce.{operation}.v{LANES}i32"
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), [vector])


@intrinsic
def _round_block(_context: Any, source: Any, is_half: Any, target: Any) -> Any:
    """Round 32 numbers at `source`, float32 or bfloat16, to a record at `target`.

    The largest number becomes 127. An infinity or what is no number gives a scale that spoils all results."""

    def codegen(context: Any, builder: Builder, _signature: Any, values: Any) -> Value:
        source, is_half, target = values
        slots = [cgutils.alloca_once(builder, VECTOR) for _ in range(2)]
        with builder.if_else(is_half) as (halves, floats):
            with halves:
                for place, slot in enumerate(slots):
                    half = emit_load(builder, emit_offset(builder, source, place * HALF_BYTES * LANES), HALF_VECTOR)
                    bits = builder.shl(builder.zext(half, INT_VECTOR), emit_ints(16, INT_VECTOR))
                    builder.store(builder.bitcast(bits, VECTOR), slot)
            with floats:
                for place, slot in enumerate(slots):
                    builder.store(emit_load(builder, emit_offset(builder, source, place * VECTOR_BYTES), VECTOR), slot)
        numbers = [builder.load(slot) for slot in slots]
        sizes = [builder.and_(builder.bitcast(each, INT_VECTOR), emit_ints(0x7FFFFFFF, INT_VECTOR)) for each in numbers]

        # Without the sign, bits sort like magnitudes, and what is no number is largest.
        larger = builder.select(builder.icmp_signed(">", *sizes), *sizes)
        largest = builder.bitcast(_emit_reduced(builder, larger, "smax"), FLOAT)
        is_zero = builder.fcmp_ordered("<", largest, ir.Constant(FLOAT, SMALLEST))
        most = ir.Constant(FLOAT, LARGEST)
        factor = builder.select(is_zero, ir.Constant(FLOAT, 0.0), builder.fdiv(most, largest))
        scale = builder.fdiv(largest, most)
        emit_store(builder, scale, emit_offset(builder, target, SCALE_PLACE))
        sums = []
        for place, each in enumerate(numbers):
            scaled = builder.fmul(each, emit_splat(builder, factor))
            rounded = builder.bitcast(builder.fadd(scaled, emit_constant(MAGIC)), INT_VECTOR)
            chars = builder.trunc(rounded, ir.VectorType(ir.IntType(8), LANES))
            emit_store(builder, chars, emit_offset(builder, target, place * LANES))
            sums.append(_emit_reduced(builder, builder.sext(chars, INT_VECTOR), "add"))
        for place, middle, total in zip(SUM_PLACES, MIDDLE_PLACES, (builder.add(*sums), *sums), strict=True):
            number = builder.fmul(builder.sitofp(total, FLOAT), scale)
            emit_store(builder, number, emit_offset(builder, target, place))
            emit_store(builder, builder.mul(total, ir.Constant(INT, MIDDLE)), emit_offset(builder, target, middle))
        return context.get_dummy_value()

    return types.void(types.int64, types.boolean, types.int64), codegen


@nb.njit(inline="always")
def _round_rows(call: Any) -> None:
    counter = np.int64(call.ctypes.data) + 8 * COUNTER
    width, item, num_blocks = call[WIDTH], call[ITEM], call[NUM_BLOCKS]
    last = np.zeros(BLOCK, np.float32)
    num_whole, rest = width // BLOCK, width % BLOCK * item
    while True:
        first = raise_counter(counter, ROWS_AT_A_TIME)
        if first >= call[NUM_ROWS]:
            return
        for row in range(first, min(first + ROWS_AT_A_TIME, call[NUM_ROWS])):
            source, target = call[SOURCE] + row * width * item, call[TARGET] + row * num_blocks * ROW_RECORD
            for block in range(num_whole):
                _round_block(source + block * BLOCK * item, item == HALF_BYTES, target + block * ROW_RECORD)
            if rest:
                copy_bytes(last.ctypes.data, source + num_whole * BLOCK * item, rest)
                _round_block(last.ctypes.data, item == HALF_BYTES, target + num_whole * ROW_RECORD)


def round_blocks(fields: Any) -> None:
    """One thread's share of a call that rounds rows to records of signed bytes, a few rows at a time."""
    _round_rows(nb.carray(fields, NUM_FIELDS))
