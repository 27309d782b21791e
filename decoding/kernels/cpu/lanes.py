# ruff: noqa: ARG001 - an intrinsic receives the types of its arguments, which the signature fixes anyway
"""Vector primitives of the exact kernels: sixteen lanes, each of which computes one number of the result.

They are emitted as LLVM vector instructions, so that speed does not depend on the auto-vectoriser and rounding on no
optimiser: no fast-math, every sum runs in the order of its loop, one fused multiply-add per step.
Addresses are integers, which nothing checks. A "lane array" is float32 [n, 16] in memory.
Invariant: a lane's result does not depend on the other lanes' content.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
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
LOG2_E, LN_2_HIGH, LN_2_LOW = 1.4426950408889634, 0.693359375, -2.12194440e-4
# exp(r) on [-ln2/2, ln2/2]: Cephes expf.
EXP_COEFFICIENTS = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 0.5)
SMALLEST_EXPONENT = -87.0  # below it exp counts as 0

Builder = Any
Value = Any


def emit_address(builder: Builder, base: Value, index: Value, stride: int) -> Value:
    return builder.add(base, builder.mul(index, ir.Constant(base.type, stride)))


def emit_load(builder: Builder, address: Value, kind: Any) -> Value:
    return builder.load(builder.inttoptr(address, kind.as_pointer()), align=2)


def emit_store(builder: Builder, value: Value, address: Value) -> None:
    builder.store(value, builder.inttoptr(address, value.type.as_pointer()), align=2)


def emit_offset(builder: Builder, base: Value, distance: int) -> Value:
    return builder.add(base, ir.Constant(base.type, distance))


def emit_times(builder: Builder, number: Value, factor: int) -> Value:
    return builder.mul(number, ir.Constant(number.type, factor))


def emit_least(builder: Builder, one: Value, other: Value) -> Value:
    return builder.select(builder.icmp_signed("<", one, other), one, other)


def emit_prefetch(builder: Builder, address: Value) -> None:
    """Prefetch the cache line of an address; never faults."""
    pointer = ir.IntType(8).as_pointer()
    kind = ir.FunctionType(ir.VoidType(), [pointer, INT, INT, INT])
    function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
    read, locality, data = (ir.Constant(INT, number) for number in (0, 3, 1))
    builder.call(function, [builder.inttoptr(address, pointer), read, locality, data])


@contextmanager
def emit_rolled_loop(builder: Builder, count: Value) -> Iterator[Any]:
    """A loop of `count` turns that LLVM must not unroll: unrolled, it would prefetch in bursts."""
    with cgutils.for_range(builder, count, intp=count.type) as loop:
        yield loop
    module = builder.module
    no_unrolling = module.add_metadata([ir.MetaDataString(module, "llvm.loop.unroll.disable")])
    identity = ir.MDValue(module, [], name=str(len(module.metadata)))
    identity.operands = (identity, no_unrolling)
    _, (_, last_block) = loop.index.incomings
    last_block.terminator.set_metadata("llvm.loop", identity)


def emit_cases(builder: Builder, number: Value, most: int) -> Iterator[int]:
    """Each of 1 to `most` in turn, for which the caller emits what is done where it is `number`; else nothing is."""
    after = builder.append_basic_block("after")
    switch = builder.switch(number, after)
    for case in range(1, most + 1):
        block = builder.append_basic_block(f"case{case}")
        switch.add_case(ir.Constant(number.type, case), block)
        builder.position_at_end(block)
        yield case
        builder.branch(after)
    builder.position_at_end(after)


def emit_splat(builder: Builder, scalar: Value) -> Value:
    first = builder.insert_element(ir.Constant(VECTOR, ir.Undefined), scalar, ir.Constant(INT, 0))
    zeros = ir.Constant(INT_VECTOR, [0] * LANES)
    return builder.shuffle_vector(first, ir.Constant(VECTOR, ir.Undefined), zeros)


def emit_constant(number: float) -> Value:
    return ir.Constant(VECTOR, [number] * LANES)


def emit_call(builder: Builder, name: str, *operands: Value) -> Value:
    kind = ir.FunctionType(VECTOR, [VECTOR] * len(operands))
    function = cgutils.get_or_insert_function(builder.module, kind, f"llvm.{name}.v{LANES}f32")
    return builder.call(function, operands)


def emit_assembly(builder: Builder, text: str, constraints: str, result: Any, *operands: Value) -> Value:
    """Emit one instruction as assembly, since LLVM's versions name its intrinsic differently."""
    kind = ir.FunctionType(result, [operand.type for operand in operands])
    return builder.call(ir.InlineAsm(kind, text, constraints), operands)


def emit_exp(builder: Builder, x: Value) -> Value:
    """exp(x) for x <= 0, to about one unit in the last place; 0 below SMALLEST_EXPONENT."""
    is_zero = builder.fcmp_ordered("<", x, emit_constant(SMALLEST_EXPONENT))
    x = builder.select(is_zero, emit_constant(0.0), x)
    whole = emit_call(builder, "floor", emit_call(builder, "fma", x, emit_constant(LOG2_E), emit_constant(0.5)))
    rest = emit_call(builder, "fma", whole, emit_constant(-LN_2_HIGH), x)
    rest = emit_call(builder, "fma", whole, emit_constant(-LN_2_LOW), rest)
    series = emit_constant(EXP_COEFFICIENTS[0])
    for coefficient in EXP_COEFFICIENTS[1:]:
        series = emit_call(builder, "fma", series, rest, emit_constant(coefficient))
    series = emit_call(builder, "fma", builder.fmul(series, rest), rest, rest)
    series = builder.fadd(series, emit_constant(1.0))
    exponent = builder.add(builder.fptosi(whole, INT_VECTOR), ir.Constant(INT_VECTOR, [127] * LANES))
    power = builder.bitcast(builder.shl(exponent, ir.Constant(INT_VECTOR, [23] * LANES)), VECTOR)
    return builder.select(is_zero, emit_constant(0.0), builder.fmul(series, power))


def _score_kernel(num_keys: int) -> Any:
    """scores[k] = scale * <query, key k> for `num_keys` keys, `key_step` bytes apart; the sum runs over width.

    query: address of a lane array, one query in each lane; keys: addresses of float32.
    """

    def score(_context: Any, query: Any, key: Any, key_step: Any, width: Any, scale: Any, scores: Any) -> Any:
        def codegen(context: Any, builder: Builder, _signature: Any, values: Any) -> Value:
            query, key, key_step, width, scale, scores = values
            keys = [builder.add(key, emit_times(builder, key_step, place)) for place in range(num_keys)]
            sums = [cgutils.alloca_once_value(builder, emit_constant(0.0)) for _ in keys]
            with cgutils.for_range(builder, width, intp=width.type) as loop:
                vector = emit_load(builder, emit_address(builder, query, loop.index, VECTOR_BYTES), VECTOR)
                for slot, base in zip(sums, keys, strict=True):
                    scalar = emit_splat(builder, emit_load(builder, emit_address(builder, base, loop.index, 4), FLOAT))
                    builder.store(emit_call(builder, "fma", vector, scalar, builder.load(slot)), slot)
            for place, slot in enumerate(sums):
                scaled = builder.fmul(builder.load(slot), emit_splat(builder, scale))
                emit_store(builder, scaled, emit_offset(builder, scores, place * VECTOR_BYTES))
            return context.get_dummy_value()

        return types.void(*[types.int64] * 4, types.float32, types.int64), codegen

    return intrinsic(score)


score_keys, score_key = _score_kernel(IN_FLIGHT), _score_kernel(1)


@intrinsic
def find_largest(_context: Any, scores: Any, count: Any, least: Any) -> Any:
    """The largest of `least` and the numbers of a lane array."""

    def codegen(_context: Any, builder: Builder, _signature: Any, values: Any) -> Value:
        scores, count, least = values
        slot = cgutils.alloca_once_value(builder, emit_splat(builder, least))
        with cgutils.for_range(builder, count, intp=count.type) as loop:
            score = emit_load(builder, emit_address(builder, scores, loop.index, VECTOR_BYTES), VECTOR)
            largest = builder.load(slot)
            builder.store(builder.select(builder.fcmp_ordered(">", score, largest), score, largest), slot)
        largest, half = builder.load(slot), LANES // 2
        while half:
            places = ir.Constant(INT_VECTOR, [(lane + half) % LANES for lane in range(LANES)])
            other = builder.shuffle_vector(largest, largest, places)
            largest = builder.select(builder.fcmp_ordered(">", other, largest), other, largest)
            half //= 2
        return builder.extract_element(largest, ir.Constant(INT, 0))

    return types.float32(types.int64, types.int64, types.float32), codegen


@intrinsic
def exp(_context: Any, number: Any) -> Any:
    """exp(number), with the bits that `emit_exp` gives a lane."""

    def codegen(_context: Any, builder: Builder, _signature: Any, values: Any) -> Value:
        return builder.extract_element(emit_exp(builder, emit_splat(builder, values[0])), ir.Constant(INT, 0))

    return types.float32(types.float32), codegen


@intrinsic
def soft_cap(_context: Any, scores: Any, count: Any, cap: Any) -> Any:
    """scores[n] becomes cap * tanh(scores[n] / cap), with tanh(x) = sign(x) (1 - exp(-2|x|)) / (1 + exp(-2|x|))."""

    def codegen(context: Any, builder: Builder, _signature: Any, values: Any) -> Value:
        scores, count, cap = values
        with cgutils.for_range(builder, count, intp=count.type) as loop:
            address = emit_address(builder, scores, loop.index, VECTOR_BYTES)
            x = builder.fdiv(emit_load(builder, address, VECTOR), emit_splat(builder, cap))
            power = emit_exp(builder, builder.fmul(emit_call(builder, "fabs", x), emit_constant(-2.0)))
            one = emit_constant(1.0)
            size = builder.fdiv(builder.fsub(one, power), builder.fadd(one, power))
            tanh = emit_call(builder, "copysign", size, x)
            emit_store(builder, builder.fmul(tanh, emit_splat(builder, cap)), address)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.float32), codegen


@intrinsic
def scale(_context: Any, numbers: Any, count: Any, factor: Any) -> Any:
    """The numbers of a lane array are multiplied by `factor`."""

    def codegen(context: Any, builder: Builder, _signature: Any, values: Any) -> Value:
        numbers, count, factor = values
        splat = emit_splat(builder, factor)
        with cgutils.for_range(builder, count, intp=count.type) as loop:
            address = emit_address(builder, numbers, loop.index, VECTOR_BYTES)
            emit_store(builder, builder.fmul(emit_load(builder, address, VECTOR), splat), address)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.float32), codegen


@intrinsic
def narrow(_context: Any, source: Any, count: Any, target: Any) -> Any:
    """Write a lane array as bfloat16 numbers, to the nearest, ties to even; `target` may be `source`."""

    def codegen(context: Any, builder: Builder, _signature: Any, values: Any) -> Value:
        source, count, target = values
        sixteen, one, almost_half = (ir.Constant(INT_VECTOR, [number] * LANES) for number in (16, 1, 0x7FFF))
        with cgutils.for_range(builder, count, intp=count.type) as loop:
            numbers = emit_load(builder, emit_address(builder, source, loop.index, VECTOR_BYTES), VECTOR)
            bits = builder.bitcast(numbers, INT_VECTOR)
            is_odd = builder.and_(builder.lshr(bits, sixteen), one)
            rounded = builder.add(builder.add(bits, almost_half), is_odd)
            half = builder.trunc(builder.lshr(rounded, sixteen), HALF_VECTOR)
            emit_store(builder, half, emit_address(builder, target, loop.index, VECTOR_BYTES // 2))
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
            return emit_load(builder, values[0], ir_kind)

        return kind(types.int64), codegen

    def store(_context: Any, address: Any, number: Any) -> Any:
        def codegen(context: Any, builder: Builder, _signature: Any, values: Any) -> Value:
            builder.store(values[1], builder.inttoptr(values[0], ir_kind.as_pointer()), align=2)
            return context.get_dummy_value()

        return types.void(types.int64, kind), codegen

    return intrinsic(load), intrinsic(store)


load_float, store_float = _scalar_access(types.float32, FLOAT)
load_word, store_word = _scalar_access(types.uint32, INT)
load_half, store_half = _scalar_access(types.uint16, ir.IntType(16))
_load_byte, store_byte = _scalar_access(types.uint8, ir.IntType(8))


@intrinsic
def raise_counter(_context: Any, counter: Any, amount: Any) -> Any:
    """Add atomically to the int64 at an address and return its old value; acquire and release ordering."""

    def codegen(_context: Any, builder: Builder, _signature: Any, values: Any) -> Value:
        pointer = builder.inttoptr(values[0], ir.IntType(64).as_pointer())
        return builder.atomic_rmw("add", pointer, values[1], "acq_rel")

    return types.int64(types.int64, types.int64), codegen


@intrinsic
def pointer(_context: Any, address: Any, tag: Any) -> Any:
    """An address as a pointer to numbers of the type of `tag`."""

    def codegen(context: Any, builder: Builder, _signature: Any, values: Any) -> Value:
        return builder.inttoptr(values[0], context.get_value_type(types.CPointer(tag)))

    return types.CPointer(tag)(types.int64, tag), codegen
