# ruff: noqa: ARG001 - an intrinsic receives the types of its arguments, which the signature fixes anyway
"""Kernels for a decoder layer's operations between linear layers: add, normalise, rotate, gate.

A row is a token's vector. Numbers are float32, or bfloat16 stored as uint16, as each function's `tag` says; arithmetic
is float32, rounded where torch's operations round. Addresses are integers, which nothing checks.
Invariant: a row's result depends on the row alone, bit for bit: one compiled function serves one row and many.
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
    Builder,
    Value,
    copy_bytes,
    emit_address,
    emit_call,
    emit_constant,
    emit_exp,
    emit_load,
    emit_splat,
    emit_store,
    pointer,
    raise_counter,
)
from decoding.kernels.cpu.products.panels import emit_rounded
from decoding.kernels.numba_kernel import kernel

# The fields of a call's table, each an int64; the first five are the same in all calls.
SOURCE, TARGET, NUM_ROWS, COUNTER, WIDTH = range(5)
OTHER, SUM = 5, 6  # of an addition, alone or before a norm
SCALE, EPS, ROUNDS_FIRST = range(7, 10)  # of a norm. EPS: the bits of a float32
STEP = 10  # of a norm: bytes between rows of the target; 0 if they are contiguous
NUM_HEADS, COSINES, SINES = range(5, 8)  # of a rotation
IDS = 5  # of a look-up: address of int64 rows to copy; its WIDTH is in bytes
NUM_FIELDS = 11
FAST = {"reassoc", "contract", "nsz"}
FLOATS, HALVES = np.float32(0), np.uint16(0)  # tags


@intrinsic
def widened(_context: Any, number: Any) -> Any:
    """A number as float32."""

    def codegen(_context: Any, builder: Builder, _signature: Any, values: Any) -> Value:
        if number == types.float32:
            return values[0]
        return builder.bitcast(builder.shl(builder.zext(values[0], INT), ir.Constant(INT, 16)), FLOAT)

    return types.float32(number), codegen


@intrinsic
def narrowed(_context: Any, number: Any, tag: Any) -> Any:
    """A float32 rounded to the type of `tag`: to nearest, ties to even."""

    def codegen(_context: Any, builder: Builder, _signature: Any, values: Any) -> Value:
        if tag == types.float32:
            return values[0]
        bits = builder.bitcast(values[0], INT)
        is_odd = builder.and_(builder.lshr(bits, ir.Constant(INT, 16)), ir.Constant(INT, 1))
        rounded = builder.add(builder.add(bits, ir.Constant(INT, 0x7FFF)), is_odd)
        return builder.trunc(builder.lshr(rounded, ir.Constant(INT, 16)), ir.IntType(16))

    return tag(types.float32, tag), codegen


@kernel
def _rounded(number: float, tag: Any) -> Any:
    return widened(narrowed(number, tag))


@kernel
def numbers_at(address: int, width: int, tag: Any) -> Any:
    return nb.carray(pointer(address, tag), width)


@intrinsic
def size_of(_context: Any, tag: Any) -> Any:
    """The bytes of one number of the tag's type."""

    def codegen(_context: Any, _builder: Builder, _signature: Any, _values: Any) -> Value:
        return ir.Constant(ir.IntType(64), tag.bitwidth // 8)

    return types.int64(tag), codegen


@kernel(borrows=True)
def _next_row(call: Any) -> int:
    """Claim the next row that no thread has claimed; `NUM_ROWS` or more if there is none."""
    return raise_counter(np.int64(call.ctypes.data) + 8 * COUNTER, 1)


@kernel(borrows=True)
def _add_rows(source: Any, other: Any, target: Any, tag: Any) -> None:
    for column in range(len(target)):
        target[column] = narrowed(widened(source[column]) + widened(other[column]), tag)


@nb.njit(cache=True, fastmath=FAST)
def _mean_square(numbers: Any) -> Any:
    total = np.float32(0)
    for column in range(len(numbers)):
        total += numbers[column] * numbers[column]
    return total / np.float32(len(numbers))


@kernel
def _normalise_row(call: Any, source: Any, target: Any, wide: Any, tag: Any) -> None:
    scale = numbers_at(call[SCALE], call[WIDTH], FLOATS)
    eps = nb.carray(pointer(np.int64(call.ctypes.data) + 8 * EPS, FLOATS), 1)[0]
    for column in range(len(wide)):
        wide[column] = widened(source[column])
    share = np.float32(1) / np.sqrt(_mean_square(wide) + eps)
    if call[ROUNDS_FIRST]:
        for column in range(len(wide)):
            target[column] = narrowed(_rounded(wide[column] * share, tag) * scale[column], tag)
    else:
        for column in range(len(wide)):
            target[column] = narrowed(wide[column] * share * scale[column], tag)


@nb.njit(inline="always")
def _add(call: Any, tag: Any) -> None:
    row = _next_row(call)
    while row < call[NUM_ROWS]:
        shift, width = row * call[WIDTH] * size_of(tag), call[WIDTH]
        source, other = numbers_at(call[SOURCE] + shift, width, tag), numbers_at(call[OTHER] + shift, width, tag)
        _add_rows(source, other, numbers_at(call[TARGET] + shift, width, tag), tag)
        row = _next_row(call)


@nb.njit(inline="always")
def _normalise(call: Any, tag: Any) -> None:
    """Normalise `SOURCE`, or, if there is an `OTHER`, the sum of both, which is stored in `SUM`."""
    width = call[WIDTH]
    wide = np.empty(width, np.float32)
    step = call[STEP] if call[STEP] != 0 else width * size_of(tag)
    row = _next_row(call)
    while row < call[NUM_ROWS]:
        shift = row * call[WIDTH] * size_of(tag)
        source = numbers_at(call[SOURCE] + shift, width, tag)
        if call[OTHER] != 0:
            total = numbers_at(call[SUM] + shift, width, tag)
            _add_rows(source, numbers_at(call[OTHER] + shift, width, tag), total, tag)
            source = total
        _normalise_row(call, source, numbers_at(call[TARGET] + row * step, width, tag), wide, tag)
        row = _next_row(call)


@nb.njit(inline="always")
def _rotate(call: Any, tag: Any) -> None:
    """Rotate every head of a row in place: x * cos + (-second half, first half) * sin. WIDTH: of a head."""
    half = call[WIDTH] // 2
    shift = half * size_of(tag)
    row = _next_row(call)
    while row < call[NUM_ROWS]:
        cosines = call[COSINES] + row * call[WIDTH] * size_of(tag)
        sines = call[SINES] + row * call[WIDTH] * size_of(tag)
        cos, other_cos = numbers_at(cosines, half, tag), numbers_at(cosines + shift, half, tag)
        sin, other_sin = numbers_at(sines, half, tag), numbers_at(sines + shift, half, tag)
        for head in range(call[NUM_HEADS]):
            start = call[SOURCE] + (row * call[NUM_HEADS] + head) * call[WIDTH] * size_of(tag)
            ones, others = numbers_at(start, half, tag), numbers_at(start + shift, half, tag)
            for place in range(half):
                one, other = widened(ones[place]), widened(others[place])
                left = _rounded(one * widened(cos[place]), tag)
                right = _rounded(other * widened(other_cos[place]), tag)
                ones[place] = narrowed(left + _rounded(-other * widened(sin[place]), tag), tag)
                others[place] = narrowed(right + _rounded(one * widened(other_sin[place]), tag), tag)
        row = _next_row(call)


def _emit_numbers(builder: Builder, address: Value, tag: Any) -> Value:
    """Load sixteen numbers of the tag's type as float32."""
    if tag == types.float32:
        return emit_load(builder, address, VECTOR)
    bits = builder.zext(emit_load(builder, address, HALF_VECTOR), INT_VECTOR)
    return builder.bitcast(builder.shl(bits, ir.Constant(INT_VECTOR, [16] * LANES)), VECTOR)


def _emit_silu(builder: Builder, x: Value) -> Value:
    """x / (1 + exp(-x)), computed from exp(-|x|), which cannot overflow."""
    power = emit_exp(builder, builder.fneg(emit_call(builder, "fabs", x)))
    one = emit_constant(1.0)
    is_below = builder.fcmp_ordered("<", x, emit_constant(0.0))
    return builder.fmul(x, builder.fdiv(builder.select(is_below, power, one), builder.fadd(one, power)))


@intrinsic
def _silu_vectors(_context: Any, source: Any, target: Any, count: Any, tag: Any) -> Any:
    """target = silu(source), for `count` vectors of sixteen numbers."""

    def codegen(context: Any, builder: Builder, _signature: Any, values: Any) -> Value:
        source, target, count, _ = values
        with cgutils.for_range(builder, count, intp=count.type) as loop:
            size = LANES * (4 if tag == types.float32 else 2)
            result = _emit_silu(builder, _emit_numbers(builder, emit_address(builder, source, loop.index, size), tag))
            if tag != types.float32:
                result = emit_rounded(builder, result)
            emit_store(builder, result, emit_address(builder, target, loop.index, size))
        return context.get_dummy_value()

    return types.void(*[types.int64] * 3, tag), codegen


@intrinsic
def _silu(_context: Any, number: Any) -> Any:
    """silu(number), with the bits that a lane of `_silu_vectors` gives."""

    def codegen(_context: Any, builder: Builder, _signature: Any, values: Any) -> Value:
        return builder.extract_element(_emit_silu(builder, emit_splat(builder, values[0])), ir.Constant(INT, 0))

    return types.float32(types.float32), codegen


@nb.njit(inline="always")
def _gate(call: Any, tag: Any) -> None:
    """Write silu(SOURCE), times `OTHER` if there is one."""
    width = call[WIDTH]
    row = _next_row(call)
    while row < call[NUM_ROWS]:
        shift = row * call[WIDTH] * size_of(tag)
        source, target = numbers_at(call[SOURCE] + shift, width, tag), numbers_at(call[TARGET] + shift, width, tag)
        _silu_vectors(call[SOURCE] + shift, call[TARGET] + shift, width // LANES, tag)
        for column in range(width // LANES * LANES, width):
            target[column] = narrowed(_silu(widened(source[column])), tag)
        if call[OTHER] != 0:
            other = numbers_at(call[OTHER] + shift, width, tag)
            for column in range(width):
                target[column] = narrowed(widened(target[column]) * widened(other[column]), tag)
        row = _next_row(call)


def look_up(fields: Any) -> None:
    """Copy the rows `IDS` of a table of any type."""
    call = nb.carray(fields, NUM_FIELDS)
    ids, width = nb.carray(pointer(call[IDS], np.int64(0)), call[NUM_ROWS]), call[WIDTH]
    row = _next_row(call)
    while row < call[NUM_ROWS]:
        copy_bytes(call[TARGET] + row * width, call[SOURCE] + ids[row] * width, width)
        row = _next_row(call)


def add_floats(fields: Any) -> None:
    _add(nb.carray(fields, NUM_FIELDS), FLOATS)


def add_halves(fields: Any) -> None:
    _add(nb.carray(fields, NUM_FIELDS), HALVES)


def normalise_floats(fields: Any) -> None:
    _normalise(nb.carray(fields, NUM_FIELDS), FLOATS)


def normalise_halves(fields: Any) -> None:
    _normalise(nb.carray(fields, NUM_FIELDS), HALVES)


def rotate_floats(fields: Any) -> None:
    _rotate(nb.carray(fields, NUM_FIELDS), FLOATS)


def rotate_halves(fields: Any) -> None:
    _rotate(nb.carray(fields, NUM_FIELDS), HALVES)


def gate_floats(fields: Any) -> None:
    _gate(nb.carray(fields, NUM_FIELDS), FLOATS)


def gate_halves(fields: Any) -> None:
    _gate(nb.carray(fields, NUM_FIELDS), HALVES)
