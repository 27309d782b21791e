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
    emit_times,
)


def emit_pair_product(builder: Builder, total: Value, factor: Value, vector: Value) -> Value:
    """total + both products of each lane's pairs, as float32. Needs AVX512_BF16."""
    return emit_assembly(builder, "vdpbf16ps $3, $2, $0", "=v,0,v,v", VECTOR, total, factor, vector)


def emit_halves(builder: Builder, numbers: Value) -> Value:
    """Sixteen float32 numbers to the nearest bfloat16, ties to even, and denormal ones to 0. Needs AVX512_BF16."""
    return emit_assembly(builder, "vcvtneps2bf16 $1, $0", "=v,v", HALF_VECTOR, numbers)


def _pair_kernel(has_others: bool) -> Any:
    """Write pairs from rows of `count` * LANES numbers, `step` bytes apart: of two neighbours, or with zeros of each
    alone; `num_rows` lines, which are `target_step` bytes apart. Prefetch as much at `ahead`."""

    def pair(
        _context: Any, source: Any, step: Any, num_rows: Any, count: Any, ahead: Any, target: Any, target_step: Any
    ) -> Any:
        def codegen(context: Any, builder: Builder, _signature: Any, values: Any) -> Value:
            source, step, num_rows, count, ahead, target, target_step = values
            with cgutils.for_range(builder, num_rows, intp=count.type) as row:
                done = builder.mul(emit_times(builder, row.index, 2), step)
                one, asked = builder.add(source, done), builder.add(ahead, done)
                line, other = builder.add(target, builder.mul(row.index, target_step)), builder.add(one, step)
                with cgutils.for_range(builder, count, intp=count.type) as loop:
                    half = emit_load(builder, emit_address(builder, one, loop.index, VECTOR_BYTES // 2), HALF_VECTOR)
                    pairs = builder.zext(half, INT_VECTOR)
                    if has_others:
                        half = emit_load(
                            builder, emit_address(builder, other, loop.index, VECTOR_BYTES // 2), HALF_VECTOR
                        )
                        sixteen = ir.Constant(INT_VECTOR, [16] * LANES)
                        pairs = builder.or_(pairs, builder.shl(builder.zext(half, INT_VECTOR), sixteen))
                    emit_prefetch(builder, emit_address(builder, asked, loop.index, VECTOR_BYTES))
                    emit_store(builder, pairs, emit_address(builder, line, loop.index, VECTOR_BYTES))
            return context.get_dummy_value()

        return types.void(*[types.int64] * 7), codegen

    return intrinsic(pair)


pair_up, pair_with_zeros = _pair_kernel(has_others=True), _pair_kernel(has_others=False)
