# ruff: noqa: ARG001 - an intrinsic receives the types of its arguments, which the signature fixes anyway
"""What threads of compiled code share a word by: atomic access, waiting and waking; and calls by address.

Addresses are integers, which nothing checks. Invariant: all threads see all accesses in one order.
"""

from __future__ import annotations

import platform
from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

WORD = ir.IntType(64)


def _emit_word(builder: Any, address: Any) -> Any:
    return builder.inttoptr(address, WORD.as_pointer())


@intrinsic
def load(_context: Any, address: Any) -> Any:
    """The int64 at an address, in one order for all threads, as are the two below."""

    def codegen(_context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        return builder.load_atomic(_emit_word(builder, values[0]), "seq_cst", 8)

    return types.int64(types.int64), codegen


@intrinsic
def store(_context: Any, address: Any, number: Any) -> Any:
    def codegen(context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        builder.store_atomic(values[1], _emit_word(builder, values[0]), "seq_cst", 8)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), codegen


@intrinsic
def exchange_if(_context: Any, address: Any, known: Any, number: Any) -> Any:
    """Replace the int64 if it is still `known`; what it was."""

    def codegen(_context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        place = _emit_word(builder, values[0])
        return builder.extract_value(builder.cmpxchg(place, values[1], values[2], "seq_cst", "seq_cst"), 0)

    return types.int64(types.int64, types.int64, types.int64), codegen


@intrinsic
def pause(_context: Any) -> Any:
    """Tell the processor that this thread spins."""

    def codegen(context: Any, builder: Any, _signature: Any, _values: Any) -> Any:
        if platform.machine() == "x86_64":
            kind = ir.FunctionType(ir.VoidType(), [])
            builder.call(cgutils.get_or_insert_function(builder.module, kind, "llvm.x86.sse2.pause"), [])
        return context.get_dummy_value()

    return types.void(), codegen


@intrinsic
def call_at(_context: Any, function: Any, argument: Any) -> Any:
    """Call the function at an address."""

    def codegen(context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        kind = ir.FunctionType(ir.VoidType(), [WORD])
        builder.call(builder.inttoptr(values[0], kind.as_pointer()), [values[1]])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), codegen


@intrinsic
def futex(_context: Any, system_call: Any, number: Any, address: Any, operation: Any, value: Any) -> Any:
    """futex(2) without a timeout, through the C library's `syscall` at an address."""

    def codegen(context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        kind = ir.FunctionType(WORD, [WORD] * 7)
        none = ir.Constant(WORD, 0)
        builder.call(builder.inttoptr(values[0], kind.as_pointer()), [*values[1:], none, none, none])
        return context.get_dummy_value()

    return types.void(*[types.int64] * 5), codegen
