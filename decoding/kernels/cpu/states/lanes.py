# ruff: noqa: ARG001 - an intrinsic receives the types of its arguments, which the signature fixes anyway
"""Vector primitives of the walk: sixteen values of a head's state in sixteen lanes, and their sums over its keys.

Addresses and steps are integers, in bytes, which nothing checks. Each sum runs over keys in order, one fused
multiply-add a step. Invariant: a lane's result does not depend on the other lanes' content.
"""

from __future__ import annotations

from typing import Any

from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from decoding.kernels.cpu.lanes import (
    FLOAT,
    VECTOR,
    VECTOR_BYTES,
    Builder,
    Value,
    emit_address,
    emit_call,
    emit_constant,
    emit_load,
    emit_offset,
    emit_splat,
    emit_store,
)

MANY = 4  # vectors at a time, to hide the latency of each sum


def _decayed(builder: Builder, numbers: Value, decay: Value, place: int, is_full: bool) -> Value:
    """decay: the address of the key's decay, which is of all values or of each."""
    if is_full:
        return builder.fmul(numbers, emit_load(builder, emit_offset(builder, decay, place * VECTOR_BYTES), VECTOR))
    return builder.fmul(numbers, emit_splat(builder, emit_load(builder, decay, FLOAT)))


def _scalar(builder: Builder, base: Value, index: Value) -> Value:
    return emit_splat(builder, emit_load(builder, emit_address(builder, base, index, 4), FLOAT))


def _find_kernel(num_vectors: int) -> Any:
    """Decay a state, and sums = key @ state. state: address of the first key's values; a key's are `step` after the
    one before, its decay `decay_step`, of all its values."""

    def find(
        _context: Any, state: Any, step: Any, num_keys: Any, decay: Any, decay_step: Any, key: Any, sums: Any
    ) -> Any:
        def codegen(context: Any, builder: Builder, _signature: Any, values: Any) -> Value:
            state, step, num_keys, decay, decay_step, key, sums = values
            slots = [cgutils.alloca_once_value(builder, emit_constant(0.0)) for _ in range(num_vectors)]
            with cgutils.for_range(builder, num_keys, intp=num_keys.type) as loop:
                weight = _scalar(builder, key, loop.index)
                row = builder.add(state, builder.mul(step, loop.index))
                factor = builder.add(decay, builder.mul(decay_step, loop.index))
                for place, slot in enumerate(slots):
                    address = emit_offset(builder, row, place * VECTOR_BYTES)
                    numbers = _decayed(builder, emit_load(builder, address, VECTOR), factor, place, False)
                    emit_store(builder, numbers, address)
                    builder.store(emit_call(builder, "fma", numbers, weight, builder.load(slot)), slot)
            for place, slot in enumerate(slots):
                emit_store(builder, builder.load(slot), emit_offset(builder, sums, place * VECTOR_BYTES))
            return context.get_dummy_value()

        return types.void(*[types.int64] * 7), codegen

    return intrinsic(find)


def _add_kernel(num_vectors: int, decays: str) -> Any:
    """state += outer(key, value), decayed before as `decays` says ("", "keys" or "values"), and out = query @ state."""

    def add(
        _context: Any,
        state: Any,
        step: Any,
        num_keys: Any,
        decay: Any,
        decay_step: Any,
        key: Any,
        query: Any,
        value: Any,
        out: Any,
    ) -> Any:
        def codegen(context: Any, builder: Builder, _signature: Any, values: Any) -> Value:
            state, step, num_keys, decay, decay_step, key, query, value, out = values
            slots = [cgutils.alloca_once_value(builder, emit_constant(0.0)) for _ in range(num_vectors)]
            vectors = [
                emit_load(builder, emit_offset(builder, value, place * VECTOR_BYTES), VECTOR)
                for place in range(num_vectors)
            ]
            with cgutils.for_range(builder, num_keys, intp=num_keys.type) as loop:
                weight, share = _scalar(builder, key, loop.index), _scalar(builder, query, loop.index)
                row = builder.add(state, builder.mul(step, loop.index))
                factor = builder.add(decay, builder.mul(decay_step, loop.index))
                for place, (slot, vector) in enumerate(zip(slots, vectors, strict=True)):
                    address = emit_offset(builder, row, place * VECTOR_BYTES)
                    numbers = emit_load(builder, address, VECTOR)
                    if decays:
                        numbers = _decayed(builder, numbers, factor, place, decays == "values")
                    numbers = emit_call(builder, "fma", vector, weight, numbers)
                    emit_store(builder, numbers, address)
                    builder.store(emit_call(builder, "fma", numbers, share, builder.load(slot)), slot)
            for place, slot in enumerate(slots):
                emit_store(builder, builder.load(slot), emit_offset(builder, out, place * VECTOR_BYTES))
            return context.get_dummy_value()

        return types.void(*[types.int64] * 9), codegen

    return intrinsic(add)


find_many, find_one = _find_kernel(MANY), _find_kernel(1)
add_many, add_one = _add_kernel(MANY, ""), _add_kernel(1, "")
decay_add_many, decay_add_one = _add_kernel(MANY, "keys"), _add_kernel(1, "keys")
decay_values_add_many, decay_values_add_one = _add_kernel(MANY, "values"), _add_kernel(1, "values")
