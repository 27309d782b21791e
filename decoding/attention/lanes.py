"""Vector primitives of the exact kernel: sixteen lanes, each the private arithmetic of one (row, head).

Emitted as LLVM vector instructions, so that speed does not hang on the auto-vectoriser and rounding not on
any optimiser: no fast-math, every sum runs in the order of its loop, one fused multiply-add per step.
Addresses are integers; callers vouch for them. A "lane array" is float32 [n, 16] in memory.
Invariant: what a lane computes does not depend on what the others hold.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

LANES = 16
KEYS_PER_CALL = 16  # independent sums in flight, to hide the latency of each
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


def _kernel(num_arguments: int, emit: Callable[..., None], **types_at: Any) -> Any:
    """An intrinsic of integer arguments (or those named by place, `a3=types.float32`) without a result."""
    arguments = [types_at.get(f"a{place}", types.int64) for place in range(num_arguments)]

    def typed(_context: Any, *_given: Any) -> Any:
        def codegen(_context: Any, builder: Builder, _signature: Any, values: Any) -> Value:
            emit(builder, *values)
            return _context.get_dummy_value()

        return types.void(*arguments), codegen

    # numba counts the parameters of what it is given, so it gets a function of exactly that many
    names = ", ".join(f"a{place}" for place in range(num_arguments))
    scope: dict[str, Any] = {"typed": typed}
    exec(f"def kernel(context, {names}): return typed(context, {names})", scope)
    return intrinsic(scope["kernel"])
