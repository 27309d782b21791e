# ruff: noqa: ARG001 - an intrinsic receives the types of its arguments, which the signature fixes anyway
"""Searches scale and minimum of each group of weights, sixteen outputs at a time, one in each lane.

Knows no layout. Addresses are integers. Invariant: a group's result depends on its weights alone.
"""

from __future__ import annotations

from typing import Any

import numba as nb
import numpy as np
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import NDArray

from decoding.kernels.cpu.lanes import (
    LANES,
    VECTOR,
    VECTOR_BYTES,
    Builder,
    Value,
    emit_address,
    emit_call,
    emit_constant,
    emit_load,
    emit_offset,
    emit_rolled_loop,
    emit_splat,
    emit_store,
    pointer,
    raise_counter,
)
from decoding.kernels.numba_kernel import kernel

# The fields of a call, each an int64. TARGET: codes, a byte each; SCALES, MINIMA: float32 for each row and group.
SOURCE, TARGET, NUM_ROWS, COUNTER, WIDTH, GROUP, MOST, SCALES, MINIMA = range(9)
NUM_FIELDS = 9
NUM_RANGES = 2  # ranges that codes are first spread over: the group's own, and a narrower one
RANGE_STEP = np.float32(1 / 10)
NUM_FITS = 5  # least-squares fits of scale and minimum to the codes, after each range
Lanes = NDArray[np.float32]  # [n, 16]


def _emit_ratio(builder: Builder, number: Value, divisor: Value) -> Value:
    """number / divisor; 0 where the divisor is 0."""
    is_zero = builder.fcmp_ordered("==", divisor, emit_constant(0.0))
    ratio = builder.fdiv(number, builder.select(is_zero, emit_constant(1.0), divisor))
    return builder.select(is_zero, emit_constant(0.0), ratio)


@intrinsic
def _try(_context: Any, weights: Any, importance: Any, count: Any, totals: Any, pair: Any, best: Any, most: Any) -> Any:
    """Round `count` lane arrays with a scale and a minimum, keep these where they are better, then fit them to the
    codes.

    totals: sums of importance, and of importance times weight. pair: scale and minimum. best: error, scale, minimum."""

    def codegen(context: Any, builder: Builder, _signature: Any, values: Any) -> Value:
        weights, importance, count, totals, pair, best, most = values

        def lanes(base: Value, number: int) -> Value:
            return emit_offset(builder, base, number * VECTOR_BYTES)

        total, total_weight = (emit_load(builder, lanes(totals, number), VECTOR) for number in range(2))
        scale, minimum = (emit_load(builder, lanes(pair, number), VECTOR) for number in range(2))
        factor, largest = _emit_ratio(builder, emit_constant(1.0), scale), emit_splat(builder, most)
        slots = [cgutils.alloca_once_value(builder, emit_constant(0.0)) for _ in range(4)]
        error, code_sum, square_sum, product_sum = slots
        with emit_rolled_loop(builder, count) as loop:
            weight, share = (
                emit_load(builder, emit_address(builder, base, loop.index, VECTOR_BYTES), VECTOR)
                for base in (weights, importance)
            )
            code = emit_call(builder, "rint", builder.fmul(builder.fadd(weight, minimum), factor))
            code = builder.select(builder.fcmp_ordered(">", code, emit_constant(0.0)), code, emit_constant(0.0))
            code = builder.select(builder.fcmp_ordered("<", code, largest), code, largest)
            miss = builder.fsub(builder.fsub(builder.fmul(scale, code), minimum), weight)
            weighted = builder.fmul(share, code)
            for slot, one, other in (
                (error, builder.fmul(share, miss), miss),
                (code_sum, weighted, emit_constant(1.0)),
                (square_sum, weighted, code),
                (product_sum, weighted, weight),
            ):
                builder.store(emit_call(builder, "fma", one, other, builder.load(slot)), slot)
        sums = [builder.load(slot) for slot in slots]
        is_better = builder.fcmp_ordered("<", sums[0], emit_load(builder, best, VECTOR))
        for number, new in enumerate((sums[0], scale, minimum)):
            place = lanes(best, number)
            emit_store(builder, builder.select(is_better, new, emit_load(builder, place, VECTOR)), place)
        spread = builder.fsub(builder.fmul(total, sums[2]), builder.fmul(sums[1], sums[1]))
        together = builder.fsub(builder.fmul(total, sums[3]), builder.fmul(sums[1], total_weight))
        fitted = _emit_ratio(builder, together, spread)
        emit_store(builder, fitted, pair)
        rest = builder.fsub(builder.fmul(fitted, sums[1]), total_weight)
        emit_store(builder, _emit_ratio(builder, rest, total), lanes(pair, 1))
        return context.get_dummy_value()

    return types.void(*[types.int64] * 6, types.float32), codegen


@kernel
def _search(weights: Lanes, most: np.float32) -> Lanes:
    """The best error, scale and minimum of each lane's group. Large weights count more, as in llama.cpp's k-quants."""
    size = np.float32(len(weights))
    low, high = weights[0].copy(), weights[0].copy()
    squares = np.zeros(LANES, np.float32)
    for place in range(len(weights)):
        for lane in range(LANES):
            low[lane], high[lane] = min(low[lane], weights[place, lane]), max(high[lane], weights[place, lane])
            squares[lane] += weights[place, lane] * weights[place, lane]
    importance, totals = np.empty_like(weights), np.zeros((2, LANES), np.float32)
    for place in range(len(weights)):
        for lane in range(LANES):
            share = np.sqrt(squares[lane] / size) + abs(weights[place, lane])
            importance[place, lane] = share
            totals[0, lane] += share
            totals[1, lane] += share * weights[place, lane]
    pair, best = np.empty((2, LANES), np.float32), np.empty((3, LANES), np.float32)
    for lane in range(LANES):
        best[0, lane], best[1, lane], best[2, lane] = np.float32(np.inf), 0, -low[lane]
    places = (
        weights.ctypes.data,
        importance.ctypes.data,
        totals.ctypes.data,
        pair.ctypes.data,
        best.ctypes.data,
    )
    for turn in range(NUM_RANGES):
        shrink = np.float32(1) - np.float32(turn) * RANGE_STEP
        for lane in range(LANES):
            middle, half = (high[lane] + low[lane]) / np.float32(2), (high[lane] - low[lane]) / np.float32(2) * shrink
            pair[0, lane], pair[1, lane] = np.float32(2) * half / most, half - middle
        for _ in range(1 + NUM_FITS):
            _try(*places[:2], len(weights), *places[2:], most)
    return best


@nb.njit(inline="always")
def _round(call: Any) -> None:
    counter = np.int64(call.ctypes.data) + 8 * COUNTER
    num_rows, width, group = call[NUM_ROWS], call[WIDTH], call[GROUP]
    num_groups, most = (width + group - 1) // group, np.float32(call[MOST])
    rows = nb.carray(pointer(call[SOURCE], np.float32(0)), (num_rows, width))
    codes = nb.carray(pointer(call[TARGET], np.uint8(0)), (num_rows, width))
    scales = nb.carray(pointer(call[SCALES], np.float32(0)), (num_rows, num_groups))
    minima = nb.carray(pointer(call[MINIMA], np.float32(0)), (num_rows, num_groups))
    while True:
        first = raise_counter(counter, LANES)
        if first >= num_rows:
            return
        num_lanes = min(LANES, num_rows - first)
        for place in range(num_groups):
            start = place * group
            size = min(group, width - start)
            weights = np.zeros((size, LANES), np.float32)
            for lane in range(num_lanes):
                for number in range(size):
                    weights[number, lane] = rows[first + lane, start + number]
            best = _search(weights, most)
            for lane in range(num_lanes):
                scale, minimum = best[1, lane], best[2, lane]
                scales[first + lane, place], minima[first + lane, place] = scale, minimum
                factor = np.float32(1) / scale if scale != 0 else np.float32(0)
                for number in range(size):
                    code = np.rint((weights[number, lane] + minimum) * factor)
                    codes[first + lane, start + number] = np.uint8(min(max(code, np.float32(0)), most))


def round_weights(fields: Any) -> None:
    """One thread's share of rounding rows of float32 weights, sixteen at a time."""
    _round(nb.carray(fields, NUM_FIELDS))
