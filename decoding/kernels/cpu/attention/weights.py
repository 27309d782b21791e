# ruff: noqa: ARG001 - an intrinsic receives the types of its arguments, which the signature fixes anyway
"""Scores become weights in place: float32, or bfloat16 in the first half of the same memory.

Addresses are integers, as in `lanes`. Invariant: a lane's weight does not depend on the others, and that of minus
infinity is exactly 0.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from decoding.kernels.cpu.attention.products import HAS_PAIRS
from decoding.kernels.cpu.halves import emit_halves
from decoding.kernels.cpu.lanes import (
    INT_VECTOR,
    LANES,
    VECTOR,
    VECTOR_BYTES,
    Builder,
    Value,
    emit_address,
    emit_call,
    emit_constant,
    emit_exp,
    emit_load,
    emit_splat,
    emit_store,
)

LOG2_E = 1.4426950408889634
SMALLEST_POWER = -127.0  # of two: from it on a weight has no bits left
# 2^r - 1 on [-1/2, 1/2] to 1e-4, a twentieth of what rounding to bfloat16 takes: least largest error.
POWER_COEFFICIENTS = (0.05500869, 0.24221063, 0.69328292)
SMALLEST_NORMAL = 2.0**-126


def _emit_power(builder: Builder, score: Value, largest: Value) -> Value:
    """exp(score - largest), to four digits. largest: not below -1e30."""
    shift = builder.fmul(largest, emit_constant(-LOG2_E))
    power = emit_call(builder, "fma", score, emit_constant(LOG2_E), shift)
    least = emit_constant(SMALLEST_POWER)
    power = builder.select(builder.fcmp_unordered(">", power, least), power, least)  # NaN stays
    whole = emit_call(builder, "rint", power)
    rest, series = builder.fsub(power, whole), emit_constant(POWER_COEFFICIENTS[0])
    for coefficient in (*POWER_COEFFICIENTS[1:], 1.0):
        series = emit_call(builder, "fma", series, rest, emit_constant(coefficient))
    exponent = builder.shl(builder.fptosi(whole, INT_VECTOR), ir.Constant(INT_VECTOR, [23] * LANES))
    return builder.bitcast(builder.add(builder.bitcast(series, INT_VECTOR), exponent), VECTOR)


def _weigh_kernel(is_in_pairs: bool) -> Any:
    """The `count` vectors x at `scores` become exp(x - maximum); the vector at `totals` adds them up."""

    def weigh(_context: Any, scores: Any, count: Any, maximum: Any, totals: Any) -> Any:
        def codegen(context: Any, builder: Builder, _signature: Any, values: Any) -> Value:
            scores, count, maximum, totals = values
            largest = emit_splat(builder, maximum)
            slot = cgutils.alloca_once_value(builder, emit_load(builder, totals, VECTOR))
            with cgutils.for_range(builder, count, intp=count.type) as loop:
                address = emit_address(builder, scores, loop.index, VECTOR_BYTES)
                score = emit_load(builder, address, VECTOR)
                if is_in_pairs:
                    weight = _emit_power(builder, score, largest)
                    target = emit_address(builder, scores, loop.index, VECTOR_BYTES // 2)
                    emit_store(builder, emit_halves(builder, weight), target)
                else:
                    weight = emit_exp(builder, builder.fsub(score, largest))
                    emit_store(builder, weight, address)
                builder.store(builder.fadd(builder.load(slot), weight), slot)
            emit_store(builder, builder.load(slot), totals)
            return context.get_dummy_value()

        return types.void(types.int64, types.int64, types.float32, types.int64), codegen

    return intrinsic(weigh)


weigh, weigh_pairs = _weigh_kernel(is_in_pairs=False), _weigh_kernel(is_in_pairs=HAS_PAIRS)


@intrinsic
def finish(_context: Any, numbers: Any, count: Any, total: Any) -> Any:
    """Divide `count` vectors by the weights' `total`; numbers too small for all their digits become 0.

    A weight of 0 may have turned such a number, or the sign of a 0, into +0 already.
    """

    def codegen(context: Any, builder: Builder, _signature: Any, values: Any) -> Value:
        numbers, count, total = values
        factor = builder.fdiv(emit_constant(1.0), emit_splat(builder, total))
        with cgutils.for_range(builder, count, intp=count.type) as loop:
            address = emit_address(builder, numbers, loop.index, VECTOR_BYTES)
            number = emit_load(builder, address, VECTOR)
            size = emit_call(builder, "fabs", number)
            is_small = builder.fcmp_ordered("<", size, emit_constant(SMALLEST_NORMAL))
            number = builder.select(is_small, emit_constant(0.0), builder.fmul(number, factor))
            emit_store(builder, number, address)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.float32), codegen
