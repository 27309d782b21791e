# ruff: noqa: ARG001 - an intrinsic receives the types of its arguments, which the signature fixes anyway
"""Unpacks blocks of a panel: a byte a code, scales and minima as float32.

Blocks are unpacked once for all rows of a step, into the nearest cache; codes of eight bits need none of it. Addresses
are integers, in bytes, which nothing checks.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.extending import intrinsic

from decoding.kernels.cpu.lanes import (
    FLOAT,
    INT,
    INT_VECTOR,
    LANES,
    VECTOR_BYTES,
    Builder,
    Value,
    emit_address,
    emit_load,
    emit_offset,
    emit_rolled_loop,
    emit_splat,
    emit_store,
)
from decoding.kernels.cpu.products.grouped.layout import HALF_BYTES, STEPS, Layout, layout_of
from decoding.kernels.cpu.products.panels import PANEL, PANEL_BYTES, PANEL_VECTORS
from decoding.kernels.processor import has_feature

HAS_F16C = has_feature("f16c")


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


def emit_widened(builder: Builder, halves: Value) -> Value:
    """Finite float16 numbers as float32; exact."""
    count = halves.type.count
    ints, floats = ir.VectorType(INT, count), ir.VectorType(FLOAT, count)
    if HAS_F16C:
        return builder.fpext(builder.bitcast(halves, ir.VectorType(ir.HalfType(), count)), floats)
    bits = builder.zext(halves, ints)
    size = builder.shl(builder.and_(bits, emit_ints(0x7FFF, ints)), emit_ints(13, ints))
    sign = builder.shl(builder.and_(bits, emit_ints(0x8000, ints)), emit_ints(16, ints))
    bias = ir.Constant(floats, [2.0**112] * count)  # the exponents' biases differ
    scaled = builder.fmul(builder.bitcast(size, floats), bias)
    return builder.bitcast(builder.or_(builder.bitcast(scaled, ints), sign), floats)


class Scales(NamedTuple):
    """The packed scales of a block, or its minima. start, units: addresses of the first, and of its span's units."""

    layout: Layout
    start: Value
    units: Value

    def load(self, builder: Builder, group: int, output: int, count: int) -> Value:
        """float32 of a group and `count` outputs from one on."""
        halves = ir.VectorType(ir.IntType(16), count)
        place = emit_offset(builder, self.start, self.layout.scale_bytes * (group * PANEL + output))
        if self.layout.scale_bytes == HALF_BYTES:
            return emit_widened(builder, emit_load(builder, place, halves))
        chars = emit_load(builder, place, ir.VectorType(ir.IntType(8), count))
        whole = builder.sitofp(builder.sext(chars, ir.VectorType(INT, count)), ir.VectorType(FLOAT, count))
        unit = emit_load(builder, emit_offset(builder, self.units, HALF_BYTES * output), halves)
        return builder.fmul(whole, emit_widened(builder, unit))


def emit_scales(builder: Builder, layout: Layout, block: Value, span: Value) -> tuple[Scales, Scales]:
    """A packed block's scales and minima. block, span: its address and that of its span."""
    start = emit_offset(builder, block, layout.code_bytes)
    minima = Scales(
        layout, emit_offset(builder, start, layout.pair_bytes), emit_offset(builder, span, layout.unit_bytes)
    )
    return Scales(layout, start, span), minima


@intrinsic(prefer_literal=True)
def unpack(
    _context: Any,
    bits: Any,
    group: Any,
    scale_bytes: Any,
    packed: Any,
    record: Any,
    span: Any,
    unpacked: Any,
    num_blocks: Any,
    zero: Any,
) -> Any:
    """Unpack a panel's next `num_blocks` blocks, which are of one span, whose address is given."""
    layout = layout_of(bits, group, scale_bytes)

    def codegen(context: Any, builder: Builder, _signature: Any, values: Any) -> Value:
        _, _, _, packed, record, span, unpacked, num_blocks, zero = values
        has_minima = builder.icmp_signed("<", zero, ir.Constant(zero.type, 0))
        zero_point = emit_splat(builder, builder.sitofp(zero, FLOAT))
        with emit_rolled_loop(builder, num_blocks) as loop:
            source = builder.add(packed, builder.mul(loop.index, record))
            target = emit_address(builder, unpacked, loop.index, layout.unpacked_bytes)
            for place in range(PANEL_VECTORS if layout.bits < 8 else 0):
                for step, codes in _emit_codes(builder, layout, source, place).items():
                    emit_store(builder, codes, emit_offset(builder, target, step * PANEL_BYTES + place * VECTOR_BYTES))
            scales, minima = emit_scales(builder, layout, source, span)
            places = [(group, place) for group in range(layout.num_groups) for place in range(PANEL_VECTORS)]
            for group, place in places:
                shift = group * PANEL_BYTES + place * VECTOR_BYTES
                scale = scales.load(builder, group, place * LANES, LANES)
                emit_store(builder, scale, emit_offset(builder, target, layout.scales_place + shift))
                minimum = builder.fmul(scale, zero_point)
                emit_store(builder, minimum, emit_offset(builder, target, layout.minima_place + shift))
            with builder.if_then(has_minima):
                for group, place in places:
                    shift = group * PANEL_BYTES + place * VECTOR_BYTES
                    minimum = minima.load(builder, group, place * LANES, LANES)
                    emit_store(builder, minimum, emit_offset(builder, target, layout.minima_place + shift))
        return context.get_dummy_value()

    return types.void(bits, group, scale_bytes, *[types.int64] * 6), codegen
