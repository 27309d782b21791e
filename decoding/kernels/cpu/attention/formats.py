# ruff: noqa: ARG001 - an intrinsic receives the types of its arguments, which the signature fixes anyway
"""How a row of keys or values lies in the cache, and how it becomes float32.

A row's numbers are columns of one size, which codes of int8 follow with the scales of each `SCALED` of them, as bytes.
A format is a number, as `FORMATS` counts. Addresses are integers, as in `lanes`. Invariant: what a row is stored as
depends on its own numbers alone, so that it does not matter with which others, and when, it was written.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

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
    emit_address,
    emit_constant,
    emit_load,
    emit_offset,
    emit_prefetch,
    emit_splat,
    emit_store,
)
from decoding.kernels.layout import SCALE_BYTES, SCALED, num_scale_bytes
from decoding.kernels.numba_kernel import kernel

FORMATS = ("float32", "bfloat16", "float16", "int8", "fp8")
FLOAT32, BFLOAT16, FLOAT16, INT8, FP8 = range(5)
BYTE_VECTOR = ir.VectorType(ir.IntType(8), LANES)
MOST_CODE = 127
NO_NUMBER = 0x7FC0  # a scale of numbers that are not all finite: bfloat16's NaN


class Small(NamedTuple):
    """A float of fewer bits. digits: of its fraction. largest: the code of the largest number. no_number: of NaN."""

    size: int
    digits: int
    bias: int
    largest: int
    no_number: int


HALF, E4M3 = Small(2, 10, 15, 0x7BFF, 0x7E00), Small(1, 3, 7, 0x7E, 0x7F)

_num_scale_bytes = kernel(num_scale_bytes)


@kernel(borrows=True)
def item_size(kind: int) -> int:
    """The bytes of a column."""
    return 4 if kind == FLOAT32 else 2 if kind in (BFLOAT16, FLOAT16) else 1


@kernel(borrows=True)
def row_width(kind: int, width: int) -> int:
    """The columns of a row of `width` numbers."""
    return width + _num_scale_bytes(width) if kind == INT8 else width


@kernel
def float_of(bits: int) -> Any:
    return np.uint32(bits).view(np.float32)


@kernel
def _bits_of(number: float) -> Any:
    return np.float32(number).view(np.uint32)


@kernel
def round_small(number: float, small: Small) -> Any:
    """The nearest code, ties to even; finite numbers beyond the largest become that, others NaN."""
    bits, shift = np.int64(_bits_of(number)), 23 - small.digits
    size = bits & 0x7FFFFFFF
    if size >= 0x7F800000:
        code: Any = small.no_number
    elif size < (128 - small.bias) << 23:  # below the normal numbers: the sum rounds to their last digit
        magic = (151 - small.bias - small.digits) << 23
        code = np.int64(_bits_of(float_of(size) + float_of(magic))) - magic
    else:
        half = (1 << (shift - 1)) - 1 + ((size >> shift) & 1)
        code = min((size - ((127 - small.bias) << 23) + half) >> shift, small.largest)
    return code | (bits >> 31) << (8 * small.size - 1)


@kernel
def scale_of(largest: float) -> Any:
    """The scale of numbers up to `largest`, as bfloat16, rounded up so that no code is above the largest."""
    if not largest < np.float32(np.inf):
        return NO_NUMBER
    return (np.int64(_bits_of(np.float32(largest) / np.float32(MOST_CODE))) + 0xFFFF) >> 16


def _emit_bfloat16(builder: Builder, address: Value) -> Value:
    bits = builder.zext(emit_load(builder, address, HALF_VECTOR), INT_VECTOR)
    return builder.bitcast(builder.shl(bits, _ints(16)), VECTOR)


def _emit_int8(builder: Builder, address: Value) -> Value:
    return builder.sitofp(builder.sext(emit_load(builder, address, BYTE_VECTOR), INT_VECTOR), VECTOR)


def _emit_small(small: Small) -> Callable[[Builder, Value], Value]:
    """Fraction and exponent are put in their places, where the product mends the exponent's bias."""
    kind = ir.VectorType(ir.IntType(8 * small.size), LANES)
    sign = 1 << (8 * small.size - 1)

    def emit(builder: Builder, address: Value) -> Value:
        code = builder.zext(emit_load(builder, address, kind), INT_VECTOR)
        size = builder.and_(code, _ints(sign - 1))
        bits = builder.shl(size, _ints(23 - small.digits))
        number = builder.fmul(builder.bitcast(bits, VECTOR), emit_constant(2.0 ** (127 - small.bias)))
        is_special = builder.icmp_unsigned(">", size, _ints(small.largest))
        special = builder.or_(bits, _ints(0x7F800000))
        number = builder.select(is_special, special, builder.bitcast(number, INT_VECTOR))
        sign_bit = builder.shl(builder.and_(code, _ints(sign)), _ints(32 - 8 * small.size))
        return builder.bitcast(builder.or_(number, sign_bit), VECTOR)

    return emit


def _ints(number: int) -> Value:
    return ir.Constant(INT_VECTOR, [number] * LANES)


def _widen_kernel(emit: Callable[[Builder, Value], Value], size: int) -> Any:
    """Write `count` * LANES numbers at `source` as float32 to `target`; prefetch as many at `ahead`."""

    def widen(_context: Any, source: Any, ahead: Any, count: Any, target: Any) -> Any:
        def codegen(context: Any, builder: Builder, _signature: Any, values: Any) -> Value:
            source, ahead, count, target = values
            with cgutils.for_range(builder, count, intp=count.type) as loop:
                numbers = emit(builder, emit_address(builder, source, loop.index, LANES * size))
                emit_prefetch(builder, emit_address(builder, ahead, loop.index, LANES * size))
                emit_store(builder, numbers, emit_address(builder, target, loop.index, VECTOR_BYTES))
            return context.get_dummy_value()

        return types.void(*[types.int64] * 4), codegen

    return intrinsic(widen)


_widen_bfloat16 = _widen_kernel(_emit_bfloat16, 2)
_widen_half, _widen_e4m3 = (_widen_kernel(_emit_small(each), each.size) for each in (HALF, E4M3))


def _scaled_kernel(emit_scale: Callable[[Builder, Value], Value]) -> Any:
    """Write `count` * LANES codes at `source`, scaled, as float32 to `target`; prefetch as many at `ahead`.

    scales: the address of the scales' first bytes.
    """

    def widen(_context: Any, source: Any, scales: Any, ahead: Any, count: Any, target: Any) -> Any:
        def codegen(context: Any, builder: Builder, _signature: Any, values: Any) -> Value:
            source, scales, ahead, count, target = values
            scale = builder.bitcast(builder.shl(emit_scale(builder, scales), _ints(16)), VECTOR)
            with cgutils.for_range(builder, count, intp=count.type) as loop:
                numbers = _emit_int8(builder, emit_address(builder, source, loop.index, LANES))
                emit_prefetch(builder, emit_address(builder, ahead, loop.index, LANES))
                target_place = emit_address(builder, target, loop.index, VECTOR_BYTES)
                emit_store(builder, builder.fmul(numbers, scale), target_place)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 5), codegen

    return intrinsic(widen)


def _emit_scales(builder: Builder, address: Value) -> Value:
    """A scale a lane: their low bytes, then their high ones."""
    places = (address, emit_offset(builder, address, LANES))
    low, high = (builder.zext(emit_load(builder, place, BYTE_VECTOR), INT_VECTOR) for place in places)
    return builder.or_(low, builder.shl(high, _ints(8)))


def _emit_scale(builder: Builder, address: Value) -> Value:
    bits = builder.zext(emit_load(builder, address, ir.IntType(16)), INT)
    return builder.bitcast(emit_splat(builder, builder.bitcast(bits, FLOAT)), INT_VECTOR)


_widen_keys, _widen_values = _scaled_kernel(_emit_scales), _scaled_kernel(_emit_scale)


@kernel(borrows=True)
def _widen(kind: int, source: int, ahead: int, count: int, target: int) -> None:
    """`count` vectors without scales."""
    if kind == BFLOAT16:
        _widen_bfloat16(source, ahead, count, target)
    elif kind == FLOAT16:
        _widen_half(source, ahead, count, target)
    else:
        _widen_e4m3(source, ahead, count, target)


@kernel(borrows=True)
def widen_keys(kind: int, source: int, ahead: int, width: int, target: int) -> None:
    """A block of keys as float32 [width, 16]. kind: not float32. ahead: what to prefetch, laid out alike."""
    if kind != INT8:
        _widen(kind, source, ahead, width, target)
        return
    for first in range(0, width, SCALED):
        scales, count = source + LANES * (width + SCALE_BYTES * (first // SCALED)), min(width - first, SCALED)
        done = LANES * first
        _widen_keys(source + done, scales, ahead + done, count, target + 4 * done)


@kernel(borrows=True)
def widen_values(kind: int, source: int, ahead: int, shape: tuple[int, int], target: int) -> None:
    """Values as float32 [rows, width], and numbers that mean nothing up to a whole vector after them. shape: rows and
    width. As many vectors are read of each row."""
    num_rows, width = shape
    if kind != INT8:
        _widen(kind, source, ahead, (width * num_rows + LANES - 1) // LANES, target)
        return
    step = row_width(kind, width)
    for row in range(num_rows):
        start = source + step * row
        for first in range(0, width, SCALED):
            scale, count = start + width + SCALE_BYTES * (first // SCALED), min(width - first, SCALED)
            place = target + 4 * (row * width + first)
            _widen_values(start + first, scale, ahead + step * row + first, (count + LANES - 1) // LANES, place)
