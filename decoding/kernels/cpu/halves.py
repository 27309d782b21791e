# ruff: noqa: ARG001 - an intrinsic receives the types of its arguments, which the signature fixes anyway
"""bfloat16 numbers in pairs, as AVX512_BF16 multiplies them: a lane holds two, and adds two products to its sum.

Addresses are integers, as in `lanes`. Invariant: a pair whose numbers are 0 on one side leaves a sum as it is, unless
its others are infinite or NaN.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from decoding.kernels.cpu.lanes import (
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
    emit_load,
    emit_prefetch,
    emit_store,
)


def emit_pair_product(builder: Builder, total: Value, factor: Value, vector: Value) -> Value:
    """total + both products of each lane's pairs, as float32. Needs AVX512_BF16."""
    return emit_assembly(builder, "vdpbf16ps $3, $2, $0", "=v,0,v,v", VECTOR, total, factor, vector)


def emit_halves(builder: Builder, numbers: Value) -> Value:
    """Sixteen float32 numbers to the nearest bfloat16, ties to even, and denormal ones to 0. Needs AVX512_BF16."""
    return emit_assembly(builder, "vcvtneps2bf16 $1, $0", "=v,v", HALF_VECTOR, numbers)


@intrinsic
def pair_up(_context: Any, one: Any, other: Any, mask: Any, ahead: Any, count: Any, target: Any) -> Any:
    """Write pairs of the numbers at `one` and at `other`, `count` * LANES of them; prefetch as many at `ahead`.

    mask: int32, -1, or 0 for zeros instead of the other numbers.
    """

    def codegen(context: Any, builder: Builder, _signature: Any, values: Any) -> Value:
        one, other, mask, ahead, count, target = values
        first = builder.insert_element(ir.Constant(INT_VECTOR, ir.Undefined), mask, ir.Constant(INT, 0))
        zeros = ir.Constant(INT_VECTOR, [0] * LANES)
        masks = builder.shuffle_vector(first, ir.Constant(INT_VECTOR, ir.Undefined), zeros)
        sixteen = ir.Constant(INT_VECTOR, [16] * LANES)
        masks = builder.shl(masks, sixteen)
        with cgutils.for_range(builder, count, intp=count.type) as loop:
            low, high = (
                emit_load(builder, emit_address(builder, base, loop.index, VECTOR_BYTES // 2), HALF_VECTOR)
                for base in (one, other)
            )
            low, high = builder.zext(low, INT_VECTOR), builder.shl(builder.zext(high, INT_VECTOR), sixteen)
            emit_prefetch(builder, emit_address(builder, ahead, loop.index, VECTOR_BYTES // 2))
            pairs = builder.or_(low, builder.and_(high, masks))
            emit_store(builder, pairs, emit_address(builder, target, loop.index, VECTOR_BYTES))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int32, *[types.int64] * 3), codegen
