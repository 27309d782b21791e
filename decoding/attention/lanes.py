# ruff: noqa: ARG001 - an intrinsic receives the types of its arguments, which the signature fixes anyway
"""Vector primitives of the exact kernel: sixteen lanes, each the private arithmetic of one (row, head).

Emitted as LLVM vector instructions, so that speed does not hang on the auto-vectoriser and rounding not on
any optimiser: no fast-math, every sum runs in the order of its loop, one fused multiply-add per step.
Addresses are integers; callers vouch for them. A "lane array" is float32 [n, 16] in memory.
Invariant: what a lane computes does not depend on what the others hold.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

LANES = 16
IN_FLIGHT = 16  # independent sums at a time, to hide the latency of each
FLOAT, INT = ir.FloatType(), ir.IntType(32)
VECTOR, INT_VECTOR = ir.VectorType(FLOAT, LANES), ir.VectorType(INT, LANES)
HALF_VECTOR = ir.VectorType(ir.IntType(16), LANES)
VECTOR_BYTES = 4 * LANES
CACHE_LINE = 64
LOG2_E, LN_2_HIGH, LN_2_LOW = 1.4426950408889634, 0.693359375, -2.12194440e-4
# exp(r) on [-ln2/2, ln2/2]: Cephes expf.
EXP_COEFFICIENTS = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 0.5)
SMALLEST_EXPONENT = -87.0  # below it exp counts as 0

Builder = Any
Value = Any


def _address(builder: Builder, base: Value, index: Value, stride: int) -> Value:
    return builder.add(base, builder.mul(index, ir.Constant(base.type, stride)))


def _load(builder: Builder, address: Value, kind: Any) -> Value:
    return builder.load(builder.inttoptr(address, kind.as_pointer()), align=2)


def _store(builder: Builder, value: Value, address: Value) -> None:
    builder.store(value, builder.inttoptr(address, value.type.as_pointer()), align=4)


def _splat(builder: Builder, scalar: Value) -> Value:
    first = builder.insert_element(ir.Constant(VECTOR, ir.Undefined), scalar, ir.Constant(INT, 0))
    zeros = ir.Constant(INT_VECTOR, [0] * LANES)
    return builder.shuffle_vector(first, ir.Constant(VECTOR, ir.Undefined), zeros)


def _constant(number: float) -> Value:
    return ir.Constant(VECTOR, [number] * LANES)


def _call(builder: Builder, name: str, *operands: Value) -> Value:
    kind = ir.FunctionType(VECTOR, [VECTOR] * len(operands))
    function = cgutils.get_or_insert_function(builder.module, kind, f"llvm.{name}.v{LANES}f32")
    return builder.call(function, operands)


def _exp(builder: Builder, x: Value) -> Value:
    """exp(x) for x <= 0, to about one unit in the last place; 0 below SMALLEST_EXPONENT."""
    is_zero = builder.fcmp_ordered("<", x, _constant(SMALLEST_EXPONENT))
    x = builder.select(is_zero, _constant(0.0), x)
    whole = _call(builder, "floor", _call(builder, "fma", x, _constant(LOG2_E), _constant(0.5)))
    rest = _call(builder, "fma", whole, _constant(-LN_2_HIGH), x)
    rest = _call(builder, "fma", whole, _constant(-LN_2_LOW), rest)
    series = _constant(EXP_COEFFICIENTS[0])
    for coefficient in EXP_COEFFICIENTS[1:]:
        series = _call(builder, "fma", series, rest, _constant(coefficient))
    series = _call(builder, "fma", builder.fmul(series, rest), rest, rest)
    series = builder.fadd(series, _constant(1.0))
    exponent = builder.add(builder.fptosi(whole, INT_VECTOR), ir.Constant(INT_VECTOR, [127] * LANES))
    power = builder.bitcast(builder.shl(exponent, ir.Constant(INT_VECTOR, [23] * LANES)), VECTOR)
    return builder.select(is_zero, _constant(0.0), builder.fmul(series, power))


def _emit_sums(
    builder: Builder, count: Value, start: Value, step: Any, lanes: Value, scalars: list[Value]
) -> list[Value]:
    """sums[i] = start[i] + sum over n < count of lanes[n] * scalars[i] at n * step bytes, each in order of n.

    lanes: address of a lane array; start: address of one, or None for zeros; scalars: addresses of float32.
    """
    sums = []
    for place in range(len(scalars)):
        initial = _constant(0.0) if start is None else _load(builder, _offset(builder, start, place), VECTOR)
        sums.append(cgutils.alloca_once_value(builder, initial))
    with cgutils.for_range(builder, count, intp=count.type) as loop:
        vector = _load(builder, _address(builder, lanes, loop.index, VECTOR_BYTES), VECTOR)
        for slot, base in zip(sums, scalars, strict=True):
            address = builder.add(base, builder.mul(loop.index, step))
            scalar = _splat(builder, _load(builder, address, FLOAT))
            builder.store(_call(builder, "fma", vector, scalar, builder.load(slot)), slot)
    return [builder.load(slot) for slot in sums]


def _offset(builder: Builder, base: Value, place: int) -> Value:
    return builder.add(base, ir.Constant(base.type, place * VECTOR_BYTES))


def _score_kernel(num_keys: int) -> Any:
    """scores[k] = scale * <query, key k> for `num_keys` keys, `key_step` bytes apart; the sum runs over width."""

    def score(_context: Any, query: Any, key: Any, key_step: Any, width: Any, scale: Any, scores: Any) -> Any:
        def codegen(context: Any, builder: Builder, _signature: Any, values: Any) -> Value:
            query, key, key_step, width, scale, scores = values
            steps = [builder.mul(key_step, ir.Constant(key_step.type, place)) for place in range(num_keys)]
            keys = [builder.add(key, step) for step in steps]
            sums = _emit_sums(builder, width, None, ir.Constant(key.type, 4), query, keys)
            for place, total in enumerate(sums):
                scaled = builder.fmul(total, _splat(builder, scale))
                _store(builder, scaled, _offset(builder, scores, place))
            return context.get_dummy_value()

        return types.void(*[types.int64] * 4, types.float32, types.int64), codegen

    return intrinsic(score)


def _value_kernel(num_columns: int) -> Any:
    """out[c] += weight of key k * value[k, c], for `num_columns` columns, over `count` keys in order."""

    def accumulate(_context: Any, weights: Any, value: Any, value_step: Any, count: Any, out: Any) -> Any:
        def codegen(context: Any, builder: Builder, _signature: Any, values: Any) -> Value:
            weights, value, value_step, count, out = values
            columns = [builder.add(value, ir.Constant(value.type, 4 * place)) for place in range(num_columns)]
            sums = _emit_sums(builder, count, out, value_step, weights, columns)
            for place, total in enumerate(sums):
                _store(builder, total, _offset(builder, out, place))
            return context.get_dummy_value()

        return types.void(*[types.int64] * 5), codegen

    return intrinsic(accumulate)


score_keys, score_key = _score_kernel(IN_FLIGHT), _score_kernel(1)
add_columns, add_column = _value_kernel(IN_FLIGHT), _value_kernel(1)


@intrinsic
def raise_maximum(_context: Any, scores: Any, count: Any, maximum: Any) -> Any:
    """maximum[lane] = max(maximum[lane], scores[n, lane] for n < count); addresses of lane arrays."""

    def codegen(context: Any, builder: Builder, _signature: Any, values: Any) -> Value:
        scores, count, maximum = values
        slot = cgutils.alloca_once_value(builder, _load(builder, maximum, VECTOR))
        with cgutils.for_range(builder, count, intp=count.type) as loop:
            score = _load(builder, _address(builder, scores, loop.index, VECTOR_BYTES), VECTOR)
            largest = builder.load(slot)
            is_larger = builder.fcmp_ordered(">", score, largest)
            builder.store(builder.select(is_larger, score, largest), slot)
        _store(builder, builder.load(slot), maximum)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 3), codegen


@intrinsic
def weigh(_context: Any, scores: Any, count: Any, maximum: Any, total: Any) -> Any:
    """scores[n] becomes exp(scores[n] - maximum); total += their sum, in order of n. Addresses of lane arrays."""

    def codegen(context: Any, builder: Builder, _signature: Any, values: Any) -> Value:
        scores, count, maximum, total = values
        slot = cgutils.alloca_once_value(builder, _load(builder, total, VECTOR))
        largest = _load(builder, maximum, VECTOR)
        with cgutils.for_range(builder, count, intp=count.type) as loop:
            address = _address(builder, scores, loop.index, VECTOR_BYTES)
            weight = _exp(builder, builder.fsub(_load(builder, address, VECTOR), largest))
            _store(builder, weight, address)
            builder.store(builder.fadd(builder.load(slot), weight), slot)
        _store(builder, builder.load(slot), total)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 4), codegen


@intrinsic
def soft_cap(_context: Any, scores: Any, count: Any, cap: Any) -> Any:
    """scores[n] becomes cap * tanh(scores[n] / cap), with tanh(x) = sign(x) (1 - exp(-2|x|)) / (1 + exp(-2|x|))."""

    def codegen(context: Any, builder: Builder, _signature: Any, values: Any) -> Value:
        scores, count, cap = values
        with cgutils.for_range(builder, count, intp=count.type) as loop:
            address = _address(builder, scores, loop.index, VECTOR_BYTES)
            x = builder.fdiv(_load(builder, address, VECTOR), _splat(builder, cap))
            power = _exp(builder, builder.fmul(_call(builder, "fabs", x), _constant(-2.0)))
            one = _constant(1.0)
            size = builder.fdiv(builder.fsub(one, power), builder.fadd(one, power))
            tanh = _call(builder, "copysign", size, x)
            _store(builder, builder.fmul(tanh, _splat(builder, cap)), address)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.float32), codegen


@intrinsic
def widen(_context: Any, source: Any, count: Any, target: Any) -> Any:
    """Write `count` * LANES bfloat16 numbers at `source` as float32 at `target`."""

    def codegen(context: Any, builder: Builder, _signature: Any, values: Any) -> Value:
        source, count, target = values
        with cgutils.for_range(builder, count, intp=count.type) as loop:
            half = _load(builder, _address(builder, source, loop.index, VECTOR_BYTES // 2), HALF_VECTOR)
            bits = builder.shl(builder.zext(half, INT_VECTOR), ir.Constant(INT_VECTOR, [16] * LANES))
            _store(builder, builder.bitcast(bits, VECTOR), _address(builder, target, loop.index, VECTOR_BYTES))
        return context.get_dummy_value()

    return types.void(*[types.int64] * 3), codegen


@intrinsic
def copy_bytes(_context: Any, target: Any, source: Any, count: Any) -> Any:
    """memcpy between addresses."""

    def codegen(context: Any, builder: Builder, _signature: Any, values: Any) -> Value:
        target, source, count = values
        pointer = ir.IntType(8).as_pointer()
        to, origin = builder.inttoptr(target, pointer), builder.inttoptr(source, pointer)
        cgutils.raw_memcpy(builder, to, origin, count, 1)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 3), codegen


def _scalar_access(kind: Any, ir_kind: Any) -> tuple[Any, Any]:
    def load(_context: Any, address: Any) -> Any:
        def codegen(_context: Any, builder: Builder, _signature: Any, values: Any) -> Value:
            return _load(builder, values[0], ir_kind)

        return kind(types.int64), codegen

    def store(_context: Any, address: Any, number: Any) -> Any:
        def codegen(context: Any, builder: Builder, _signature: Any, values: Any) -> Value:
            builder.store(values[1], builder.inttoptr(values[0], ir_kind.as_pointer()), align=2)
            return context.get_dummy_value()

        return types.void(types.int64, kind), codegen

    return intrinsic(load), intrinsic(store)


load_float, store_float = _scalar_access(types.float32, FLOAT)
load_half, store_half = _scalar_access(types.uint16, ir.IntType(16))


@intrinsic
def float_of_bits(_context: Any, bits: Any) -> Any:
    """The float32 whose bits are the low 32 of an integer."""

    def codegen(_context: Any, builder: Builder, _signature: Any, values: Any) -> Value:
        return builder.bitcast(builder.trunc(values[0], INT), FLOAT)

    return types.float32(types.int64), codegen


@intrinsic
def bits_of_float(_context: Any, number: Any) -> Any:
    def codegen(_context: Any, builder: Builder, _signature: Any, values: Any) -> Value:
        return builder.zext(builder.bitcast(values[0], INT), ir.IntType(64))

    return types.int64(types.float32), codegen


@intrinsic
def prefetch(_context: Any, start: Any, size: Any) -> Any:
    """Ask for `size` bytes at `start` to be brought near; never faults."""

    def codegen(context: Any, builder: Builder, _signature: Any, values: Any) -> Value:
        start, size = values
        pointer = ir.IntType(8).as_pointer()
        kind = ir.FunctionType(ir.VoidType(), [pointer, INT, INT, INT])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        lines = builder.udiv(size, ir.Constant(size.type, CACHE_LINE))
        read, locality, data = (ir.Constant(INT, number) for number in (0, 3, 1))
        with cgutils.for_range(builder, lines, intp=size.type) as loop:
            address = _address(builder, start, loop.index, CACHE_LINE)
            builder.call(function, [builder.inttoptr(address, pointer), read, locality, data])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), codegen
