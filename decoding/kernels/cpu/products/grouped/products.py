# ruff: noqa: ARG001 - an intrinsic receives the types of its arguments, which the signature fixes anyway
"""Adds the products of a few rows and a few vectors of unpacked blocks to float32 totals.

Invariant: within a group sums are integers and exact, whatever the instructions; across groups they are float32, in
order of the input, one fused multiply-add for the codes and one for the minimum. So an output's bits depend on its row
and weights alone. Addresses are integers, in bytes, which nothing checks.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from decoding.kernels.cpu.lanes import (
    FLOAT,
    INT,
    LANES,
    VECTOR_BYTES,
    Builder,
    Value,
    emit_address,
    emit_cases,
    emit_load,
    emit_offset,
    emit_prefetch,
    emit_rolled_loop,
    emit_store,
    emit_times,
)
from decoding.kernels.cpu.products.grouped.layout import (
    HAS_VNNI,
    HAS_WIDE_VNNI,
    ROW_RECORD,
    SCALE_PLACE,
    STEP,
    SUM_PLACES,
    Layout,
    layout_of,
)
from decoding.kernels.cpu.products.grouped.unpacking import emit_ints
from decoding.kernels.cpu.products.panels import PANEL, PANEL_BYTES
from decoding.kernels.processor import has_feature

HAS_AVX2 = has_feature("avx2")
# Rows and vectors of a turn must fit the processor's registers, 32 of sixteen lanes or 16 of eight.
WIDE = LANES if HAS_WIDE_VNNI else LANES // 2
WIDE_BYTES = 4 * WIDE
ROWS, VECTORS = (6, PANEL // WIDE) if HAS_WIDE_VNNI else (4, 2)
TURNS = PANEL // WIDE // VECTORS  # over a panel's vectors
WIDE_INTS, WIDE_FLOATS = ir.VectorType(INT, WIDE), ir.VectorType(FLOAT, WIDE)
WIDE_SHORTS, WIDE_CHARS = ir.VectorType(ir.IntType(16), 2 * WIDE), ir.VectorType(ir.IntType(8), 4 * WIDE)


def emit_wide_splat(builder: Builder, scalar: Value) -> Value:
    kind = ir.VectorType(scalar.type, WIDE)
    first = builder.insert_element(ir.Constant(kind, ir.Undefined), scalar, ir.Constant(INT, 0))
    return builder.shuffle_vector(first, ir.Constant(kind, ir.Undefined), ir.Constant(WIDE_INTS, [0] * WIDE))


def emit_instruction(builder: Builder, name: str, result: Any, *operands: Value) -> Value:
    kind = ir.FunctionType(result, [operand.type for operand in operands])
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, f"llvm.x86.{name}"), operands)


def _emit_four_products(builder: Builder, total: Value, codes: Value, numbers: Value) -> Value:
    """int32 totals plus four products each of unsigned codes and signed numbers; with VNNI."""
    prefix, register = ("", "v") if HAS_WIDE_VNNI else ("{vex} ", "x")
    kind = ir.FunctionType(WIDE_INTS, [WIDE_INTS] * 3)
    constraints = f"={register},0,{register},{register}"
    return builder.call(ir.InlineAsm(kind, f"{prefix}vpdpbusd $3, $2, $0", constraints), [total, codes, numbers])


def emit_two_products(builder: Builder, codes: Value, numbers: Value) -> Value:
    """Sums of two products each in 16 bits, which hold them. Without AVX2, by plain arithmetic."""
    if HAS_AVX2:
        chars = (builder.bitcast(each, WIDE_CHARS) for each in (codes, numbers))
        return emit_instruction(builder, "avx2.pmadd.ub.sw", WIDE_SHORTS, *chars)
    codes, numbers = (builder.bitcast(each, WIDE_SHORTS) for each in (codes, numbers))
    eight, low = emit_ints(8, WIDE_SHORTS), emit_ints(0xFF, WIDE_SHORTS)
    first = builder.mul(builder.and_(codes, low), builder.ashr(builder.shl(numbers, eight), eight))
    second = builder.mul(builder.lshr(codes, eight), builder.ashr(numbers, eight))
    return builder.add(first, second)


def emit_pair_sums(builder: Builder, shorts: Value) -> Value:
    """Sums of two 16-bit numbers each in 32 bits. Without AVX2, by plain arithmetic."""
    if HAS_AVX2:
        return emit_instruction(builder, "avx2.pmadd.wd", WIDE_INTS, shorts, emit_ints(1, WIDE_SHORTS))
    both, sixteen = builder.bitcast(shorts, WIDE_INTS), emit_ints(16, WIDE_INTS)
    return builder.add(builder.ashr(builder.shl(both, sixteen), sixteen), builder.ashr(both, sixteen))


class Row(NamedTuple):
    """The record of a row's block, of which numbers are put into all lanes. start: its address."""

    start: Value

    def numbers(self, builder: Builder, step: int) -> Value:
        return self._splat(builder, step * STEP, INT)

    def floats(self, builder: Builder, place: int) -> Value:
        return self._splat(builder, place, FLOAT)

    def middle(self, builder: Builder, place: int) -> Value:
        return self._splat(builder, place, INT)

    def _splat(self, builder: Builder, place: int, kind: Any) -> Value:
        return emit_wide_splat(builder, emit_load(builder, emit_offset(builder, self.start, place), kind))


class Tile(NamedTuple):
    """A few rows and a few vectors of one block. codes, unpacked: addresses of the block's codes, and of what is
    unpacked of it."""

    rows: list[Row]
    codes: Value
    unpacked: Value

    def step(self, builder: Builder, step: int) -> list[Value]:
        return _emit_vectors(builder, self.codes, step * PANEL_BYTES, WIDE_INTS)

    def pairs(self, builder: Builder, place: int) -> list[Value]:
        """Scales or minima."""
        return _emit_vectors(builder, self.unpacked, place, WIDE_FLOATS)


def _emit_vectors(builder: Builder, base: Value, shift: int, kind: Any) -> list[Value]:
    places = [shift + place * WIDE_BYTES for place in range(VECTORS)]
    return [emit_load(builder, emit_offset(builder, base, place), kind) for place in places]


Sums = list[list[Value]]  # for each row and vector


def _emit_group_sums(builder: Builder, layout: Layout, tile: Tile, steps: range) -> Sums:
    """The integer sums over a group's steps. Without VNNI, of fewer than eight bits."""
    rows, vectors = range(len(tile.rows)), range(VECTORS)
    totals: Sums = [[emit_ints(0, WIDE_INTS) for _ in vectors] for _ in rows]
    if HAS_VNNI:
        for step in steps:
            codes = tile.step(builder, step)
            for row in rows:
                numbers = tile.rows[row].numbers(builder, step)
                totals[row] = [
                    _emit_four_products(builder, total, each, numbers)
                    for total, each in zip(totals[row], codes, strict=True)
                ]
        return totals
    for start in range(steps.start, steps.stop, layout.flush):
        shorts: Sums = [[emit_ints(0, WIDE_SHORTS) for _ in vectors] for _ in rows]
        for step in range(start, start + layout.flush):
            codes = tile.step(builder, step)
            for row in rows:
                numbers = tile.rows[row].numbers(builder, step)
                shorts[row] = [
                    builder.add(total, emit_two_products(builder, each, numbers))
                    for total, each in zip(shorts[row], codes, strict=True)
                ]
        for row in rows:
            totals[row] = [
                builder.add(total, emit_pair_sums(builder, each))
                for total, each in zip(totals[row], shorts[row], strict=True)
            ]
    return totals


def _emit_fused(builder: Builder, one: Value, other: Value, total: Value) -> Value:
    kind = ir.FunctionType(WIDE_FLOATS, [WIDE_FLOATS] * 3)
    function = cgutils.get_or_insert_function(builder.module, kind, f"llvm.fma.v{WIDE}f32")
    return builder.call(function, [one, other, total])


def part_of(layout: Layout, group: int) -> int:
    """Which of a record's sums is a group's."""
    return 0 if layout.num_groups == 1 else 1 + group


def emit_scaled(
    builder: Builder,
    row: Row,
    part: int,
    places: list[Value],
    wholes: list[Value],
    scales: list[Value],
    negative_minima: list[Value],
) -> None:
    """Add a group's sums to a row's float32 totals, whose addresses are `places`."""
    factor, number_sum = row.floats(builder, SCALE_PLACE), row.floats(builder, SUM_PLACES[part])
    for place, whole, scale, minimum in zip(places, wholes, scales, negative_minima, strict=True):
        total = emit_load(builder, place, WIDE_FLOATS)
        scaled = builder.fmul(builder.sitofp(whole, WIDE_FLOATS), scale)
        total = _emit_fused(builder, scaled, factor, total)
        emit_store(builder, _emit_fused(builder, minimum, number_sum, total), place)


def _emit_tile(builder: Builder, layout: Layout, tile: Tile, places: list[list[Value]]) -> None:
    """Add one block's products to float32 totals. places: their addresses."""
    steps_a_group = layout.group // STEP
    for group in range(layout.num_groups):
        part = part_of(layout, group)
        steps = range(group * steps_a_group, (group + 1) * steps_a_group)
        sums = _emit_group_sums(builder, layout, tile, steps)
        scales = tile.pairs(builder, layout.scales_place + group * PANEL_BYTES)
        minima = tile.pairs(builder, layout.minima_place + group * PANEL_BYTES)
        minima = [builder.fneg(minimum) for minimum in minima]
        for row, row_places, row_sums in zip(tile.rows, places, sums, strict=True):
            emit_scaled(builder, row, part, row_places, row_sums, scales, minima)


@intrinsic(prefer_literal=True)
def take_turn(
    _context: Any,
    bits: Any,
    group: Any,
    scale_bytes: Any,
    num_rows: Any,
    source: Any,
    source_step: Any,
    packed: Any,
    record: Any,
    unpacked: Any,
    num_blocks: Any,
    sums: Any,
    asked: Any,
    asked_step: Any,
) -> Any:
    """sums[r] += row r * blocks for 1 to `ROWS` rows, `source_step` bytes apart, and `VECTORS` vectors.

    packed, unpacked: the first block as it lies in memory, `record` bytes before the next, and as it is unpacked.
    asked: the first address to prefetch; each block prefetches its share of a block, `asked_step` bytes apart."""
    layout = layout_of(bits, group, scale_bytes)
    num_asked = -(-(layout.code_bytes + 2 * layout.pair_bytes) // (VECTOR_BYTES * TURNS))

    def codegen(context: Any, builder: Builder, _signature: Any, values: Any) -> Value:
        _, _, _, num_rows, source, source_step, packed, record, unpacked, num_blocks, sums, asked, asked_step = values
        for count in emit_cases(builder, num_rows, ROWS):
            starts = [builder.add(source, emit_times(builder, source_step, row)) for row in range(count)]
            places = [
                [emit_offset(builder, sums, row * PANEL_BYTES + place * WIDE_BYTES) for place in range(VECTORS)]
                for row in range(count)
            ]
            with emit_rolled_loop(builder, num_blocks) as loop:
                rows = [Row(emit_address(builder, start, loop.index, ROW_RECORD)) for start in starts]
                block = emit_address(builder, unpacked, loop.index, layout.unpacked_bytes)
                first = builder.add(asked, builder.mul(loop.index, emit_times(builder, asked_step, num_asked)))
                for place in range(num_asked):
                    emit_prefetch(builder, builder.add(first, emit_times(builder, asked_step, place)))
                codes = builder.add(packed, builder.mul(loop.index, record)) if layout.bits == 8 else block
                _emit_tile(builder, layout, Tile(rows, codes, block), places)
        return context.get_dummy_value()

    return types.void(bits, group, scale_bytes, *[types.int64] * 10), codegen
