# ruff: noqa: ARG001 - an intrinsic receives the types of its arguments, which the signature fixes anyway
"""Adds the products of a few rows and packed blocks to float32 totals, on processors without VNNI.

Codes are unpacked in registers, for all rows at once. A block is read in a few passes, each of which prefetches its
share of a later one: without that the processor, which expects lines in order, reads a third less. Invariant: an output
has the bits that `products` gives it. Addresses are integers, in bytes, which nothing checks.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from decoding.kernels.cpu.lanes import (
    FLOAT,
    Builder,
    Value,
    emit_address,
    emit_cases,
    emit_load,
    emit_offset,
    emit_prefetch,
    emit_rolled_loop,
    emit_times,
)
from decoding.kernels.cpu.products.grouped.layout import (
    HAS_VNNI,
    MIDDLE,
    MIDDLE_PLACES,
    ROW_RECORD,
    STEP,
    STEPS,
    Layout,
    layout_of,
)
from decoding.kernels.cpu.products.grouped.products import (
    HAS_AVX2,
    WIDE,
    WIDE_BYTES,
    WIDE_CHARS,
    WIDE_FLOATS,
    WIDE_INTS,
    WIDE_SHORTS,
    Row,
    emit_instruction,
    emit_pair_sums,
    emit_scaled,
    emit_two_products,
    emit_wide_splat,
    part_of,
)
from decoding.kernels.cpu.products.grouped.unpacking import Scales, emit_ints, emit_nibbles, emit_scales
from decoding.kernels.cpu.products.panels import PANEL, PANEL_BYTES

FEW = 0 if HAS_VNNI else 4  # the most rows
LINE_BYTES = 64
AHEAD = 4096  # bytes between what is read and what is prefetched
TOGETHER = {1: 4, 2: 4, 3: 2, 4: 2}  # by the number of rows: vectors whose sums are in registers at a time


class Signed(NamedTuple):
    """Codes of eight bits less `MIDDLE`, and their sizes, unsigned: sums of two products of a size and a byte fit 16
    bits, where those of a code and a byte might not."""

    codes: Value
    sizes: Value


def _emit_signed(builder: Builder, codes: Value) -> Signed:
    signed = builder.bitcast(builder.xor(codes, emit_ints(MIDDLE * 0x01010101, WIDE_INTS)), WIDE_CHARS)
    kind = ir.FunctionType(WIDE_CHARS, [WIDE_CHARS, ir.IntType(1)])
    size = cgutils.get_or_insert_function(builder.module, kind, f"llvm.abs.v{WIDE_CHARS.count}i8")
    return Signed(signed, builder.call(size, [signed, ir.Constant(ir.IntType(1), 0)]))


def _emit_signed_products(builder: Builder, signed: Signed, numbers: Value) -> Value:
    """int32 sums of four products each of signed codes and signed numbers, which take the codes' signs."""
    chars = builder.bitcast(numbers, WIDE_CHARS)
    if HAS_AVX2:
        chars = emit_instruction(builder, "avx2.psign.b", WIDE_CHARS, chars, signed.codes)
    else:
        is_negative = builder.icmp_signed("<", signed.codes, emit_ints(0, WIDE_CHARS))
        chars = builder.select(is_negative, builder.neg(chars), chars)
    return emit_pair_sums(builder, emit_two_products(builder, signed.sizes, chars))


def _load(builder: Builder, block: Value, line: int, places: range) -> list[Value]:
    return [
        emit_load(builder, emit_offset(builder, block, line * PANEL_BYTES + place * WIDE_BYTES), WIDE_INTS)
        for place in places
    ]


def _emit_codes(builder: Builder, layout: Layout, block: Value, step: int, places: range) -> list[Value]:
    """A step's codes, of fewer than eight bits, for some vectors."""
    half, extra = STEPS // 2, layout.bits - 4
    both = _load(builder, block, step % half, places)
    codes = [emit_nibbles(builder, each, step // half * 4, 15) for each in both]
    if not extra:
        return codes
    steps_a_plane = 8 // extra
    shift, mask = step % steps_a_plane * extra - 4, (2**extra - 1) << 4
    planes = _load(builder, block, half + step // steps_a_plane, places)
    return [
        builder.or_(code, emit_nibbles(builder, plane, shift, mask)) for code, plane in zip(codes, planes, strict=True)
    ]


def _emit_sums(
    builder: Builder, layout: Layout, block: Value, rows: list[Row], group: int, places: range
) -> list[list[Value]]:
    """The integer sums over a group's steps, for each row and some vectors."""
    steps_a_group, part = layout.group // STEP, part_of(layout, group)
    steps = range(group * steps_a_group, (group + 1) * steps_a_group)
    if layout.bits == 8:
        totals = [[row.middle(builder, MIDDLE_PLACES[part])] * len(places) for row in rows]
        for step in steps:
            signed = [_emit_signed(builder, codes) for codes in _load(builder, block, step, places)]
            for number, row in enumerate(rows):
                numbers = row.numbers(builder, step)
                totals[number] = [
                    builder.add(total, _emit_signed_products(builder, each, numbers))
                    for total, each in zip(totals[number], signed, strict=True)
                ]
        return totals
    totals = [[emit_ints(0, WIDE_INTS) for _ in places] for _ in rows]
    for start in range(steps.start, steps.stop, layout.flush):
        shorts = [[emit_ints(0, WIDE_SHORTS) for _ in places] for _ in rows]
        for step in range(start, start + layout.flush):
            codes = _emit_codes(builder, layout, block, step, places)
            for number, row in enumerate(rows):
                numbers = row.numbers(builder, step)
                shorts[number] = [
                    builder.add(total, emit_two_products(builder, each, numbers))
                    for total, each in zip(shorts[number], codes, strict=True)
                ]
        for number, row_shorts in enumerate(shorts):
            totals[number] = [
                builder.add(total, emit_pair_sums(builder, each))
                for total, each in zip(totals[number], row_shorts, strict=True)
            ]
    return totals


def _emit_minima(
    builder: Builder, has_minima: Value, zero_point: Value, minima: Scales, used: list[Value], group: int, places: range
) -> list[Value]:
    """The negative minima of a group. used: its scales."""
    with builder.if_else(has_minima) as (stored, derived):
        with stored:
            those = [minima.load(builder, group, place * WIDE, WIDE) for place in places]
            stored_block = builder.block
        with derived:
            these = [builder.fmul(scale, zero_point) for scale in used]
            derived_block = builder.block
    chosen = [builder.phi(WIDE_FLOATS) for _ in places]
    for minimum, that, this in zip(chosen, those, these, strict=True):
        minimum.add_incoming(that, stored_block)
        minimum.add_incoming(this, derived_block)
    return [builder.fneg(minimum) for minimum in chosen]


def _emit_prefetches(builder: Builder, layout: Layout, block: Value, number: int, num_passes: int) -> None:
    """A pass's share of the cache lines of a later block."""
    num_lines = -(-(layout.code_bytes + 2 * layout.pair_bytes) // LINE_BYTES)
    for line in range(number * num_lines // num_passes, (number + 1) * num_lines // num_passes):
        emit_prefetch(builder, emit_offset(builder, block, AHEAD + line * LINE_BYTES))


@intrinsic(prefer_literal=True)
def take_few(
    _context: Any,
    bits: Any,
    group: Any,
    scale_bytes: Any,
    num_rows: Any,
    source: Any,
    source_step: Any,
    packed: Any,
    record: Any,
    span: Any,
    num_blocks: Any,
    zero: Any,
    sums: Any,
) -> Any:
    """sums[r] += row r * the next `num_blocks` blocks of a panel, for 1 to `FEW` rows, `source_step` bytes apart. The
    blocks are of one span, whose address is given."""
    layout = layout_of(bits, group, scale_bytes)

    def codegen(context: Any, builder: Builder, _signature: Any, values: Any) -> Value:
        _, _, _, num_rows, source, source_step, packed, record, span, num_blocks, zero, sums = values
        has_minima = builder.icmp_signed("<", zero, ir.Constant(zero.type, 0))
        zero_point = emit_wide_splat(builder, builder.sitofp(zero, FLOAT))
        for count in emit_cases(builder, num_rows, FEW):
            starts = [builder.add(source, emit_times(builder, source_step, row)) for row in range(count)]
            with emit_rolled_loop(builder, num_blocks) as loop:
                block = builder.add(packed, builder.mul(loop.index, record))
                passes = [
                    (group, range(first, first + TOGETHER[count]))
                    for group in range(layout.num_groups)
                    for first in range(0, PANEL // WIDE, TOGETHER[count])
                ]
                rows = [Row(emit_address(builder, start, loop.index, ROW_RECORD)) for start in starts]
                scales, minima = emit_scales(builder, layout, block, span)
                for number, (group, places) in enumerate(passes):
                    _emit_prefetches(builder, layout, block, number, len(passes))
                    wholes = _emit_sums(builder, layout, block, rows, group, places)
                    used = [scales.load(builder, group, place * WIDE, WIDE) for place in places]
                    those = _emit_minima(builder, has_minima, zero_point, minima, used, group, places)
                    for place, (row, row_wholes) in enumerate(zip(rows, wholes, strict=True)):
                        start = emit_offset(builder, sums, place * PANEL_BYTES)
                        targets = [emit_offset(builder, start, each * WIDE_BYTES) for each in places]
                        emit_scaled(builder, row, part_of(layout, group), targets, row_wholes, used, those)
        return context.get_dummy_value()

    return types.void(bits, group, scale_bytes, *[types.int64] * 9), codegen
