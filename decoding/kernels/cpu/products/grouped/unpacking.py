# ruff: noqa: ARG001 - an intrinsic receives the types of its arguments, which the signature fixes anyway
"""Unpacks blocks of a panel: a byte a code, scales and minima as float32.

Blocks are unpacked once for all rows of a step, into the nearest cache; codes of eight bits need none of it. Addresses
are integers, in bytes, which nothing checks.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.extending import intrinsic

from decoding.kernels.cpu.lanes import (
    FLOAT,
    HALF_VECTOR,
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
    emit_rolled_loop,
    emit_splat,
    emit_store,
)
from decoding.kernels.cpu.products.grouped.layout import HALF_BYTES, STEPS, Layout, layout_of
from decoding.kernels.cpu.products.panels import PANEL_BYTES, PANEL_VECTORS


def emit_ints(number: int, kind: Any) -> Value:
    return ir.Constant(kind, [number] * kind.count)


def emit_nibbles(builder: Builder, bytes_: Value, shift: int, mask: int) -> Value:
    """Bits of all bytes, shifted right (left if negative) and masked."""
    if shift:
        move = builder.lshr if shift > 0 else builder.shl
        bytes_ = move(bytes_, emit_ints(abs(shift), bytes_.type))
    return builder.and_(bytes_, emit_ints(mask * 0x01010101, bytes_.type))


def _emit_codes(builder: Builder, layout: Layout, packed: Value, place: int) -> dict[int, Value]:
    """The codes of each step for a vector of sixteen outputs, of fewer than eight bits."""

    def load(row: int) -> Value:
        return emit_load(builder, emit_offset(builder, packed, row * PANEL_BYTES + place * VECTOR_BYTES), INT_VECTOR)

    half = STEPS // 2
    codes = {}
    for step in range(half):
        both = load(step)
        codes[step], codes[step + half] = (emit_nibbles(builder, both, shift, 15) for shift in (0, 4))
    extra = layout.bits - 4  # bits in further planes, each of which serves 8 // extra steps
    if extra:
        steps_a_plane = 8 // extra
        planes = [load(half + plane) for plane in range(STEPS // steps_a_plane)]
        for step in range(STEPS):
            shift = step % steps_a_plane * extra - 4
            high = emit_nibbles(builder, planes[step // steps_a_plane], shift, (2**extra - 1) << 4)
            codes[step] = builder.or_(codes[step], high)
    return codes


def _emit_halves(builder: Builder, address: Value) -> Value:
    return emit_widened(builder, emit_load(builder, address, HALF_VECTOR))


def emit_widened(builder: Builder, halves: Value) -> Value:
    """Sixteen finite float16 numbers as float32; exact."""
    bits = builder.zext(halves, INT_VECTOR)
    size = builder.shl(builder.and_(bits, emit_ints(0x7FFF, INT_VECTOR)), emit_ints(13, INT_VECTOR))
    sign = builder.shl(builder.and_(bits, emit_ints(0x8000, INT_VECTOR)), emit_ints(16, INT_VECTOR))
    scaled = builder.fmul(builder.bitcast(size, VECTOR), emit_constant(2.0**112))  # the exponents' biases differ
    return builder.bitcast(builder.or_(builder.bitcast(scaled, INT_VECTOR), sign), VECTOR)


@intrinsic(prefer_literal=True)
def unpack(
    _context: Any, bits: Any, group: Any, packed: Any, record: Any, unpacked: Any, num_blocks: Any, zero: Any
) -> Any:
    """Unpack a panel's next `num_blocks` blocks."""
    layout = layout_of(bits, group)

    def codegen(context: Any, builder: Builder, _signature: Any, values: Any) -> Value:
        _, _, packed, record, unpacked, num_blocks, zero = values
        has_minima = builder.icmp_signed("<", zero, ir.Constant(zero.type, 0))
        zero_point = emit_splat(builder, builder.sitofp(zero, FLOAT))
        with emit_rolled_loop(builder, num_blocks) as loop:
            source = builder.add(packed, builder.mul(loop.index, record))
            target = emit_address(builder, unpacked, loop.index, layout.unpacked_bytes)
            for place in range(PANEL_VECTORS if layout.bits < 8 else 0):
                for step, codes in _emit_codes(builder, layout, source, place).items():
                    emit_store(builder, codes, emit_offset(builder, target, step * PANEL_BYTES + place * VECTOR_BYTES))
            scales = emit_offset(builder, source, layout.code_bytes)
            minima = emit_offset(builder, scales, layout.pair_bytes)
            places = range(layout.num_groups * PANEL_VECTORS)
            for place in places:
                scale = _emit_halves(builder, emit_offset(builder, scales, place * HALF_BYTES * LANES))
                shift = layout.scales_place + place * VECTOR_BYTES
                emit_store(builder, scale, emit_offset(builder, target, shift))
                shift = layout.minima_place + place * VECTOR_BYTES
                emit_store(builder, builder.fmul(scale, zero_point), emit_offset(builder, target, shift))
            with builder.if_then(has_minima):
                for place in places:
                    minimum = _emit_halves(builder, emit_offset(builder, minima, place * HALF_BYTES * LANES))
                    shift = layout.minima_place + place * VECTOR_BYTES
                    emit_store(builder, minimum, emit_offset(builder, target, shift))
        return context.get_dummy_value()

    return types.void(bits, group, *[types.int64] * 5), codegen
