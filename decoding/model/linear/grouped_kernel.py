# ruff: noqa: ARG001 - an intrinsic receives the types of its arguments, which the signature fixes anyway
"""Multiplies rows of bytes with weights of 4 to 8 bits in groups, which are unpacked once for many rows.

A panel holds 64 outputs, in blocks of 32 inputs (see `Layout`): codes, then scales and perhaps minima as float16. A row
is made of records of 64 bytes, one a block: signed bytes, their scale and their sums (see `round_blocks`).
Invariant: within a group sums are integers and exact, whatever the instructions; across groups they are float32, in
order of the input, one fused multiply-add for the codes and one for the minimum. So an output's bits depend on its row
and weights alone. Addresses are integers, in bytes, which nothing checks.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numba as nb
import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from decoding.attention.lanes import (
    FLOAT,
    HALF_VECTOR,
    INT,
    INT_VECTOR,
    LANES,
    VECTOR,
    VECTOR_BYTES,
    Builder,
    Value,
    copy_bytes,
    emit_address,
    emit_constant,
    emit_load,
    emit_offset,
    emit_prefetch,
    emit_rolled_loop,
    emit_splat,
    emit_store,
    emit_times,
    has_feature,
    narrow,
    pointer,
    raise_counter,
)
from decoding.model.linear.panel_kernel import MOST_ROWS, PANEL, PANEL_BYTES, PANEL_VECTORS, add, fill, room, write

BLOCK = 32  # inputs of a block
STEP = 4  # inputs of a step: a vector holds so many bytes of each of its outputs
STEPS = BLOCK // STEP
HALF_BYTES = 2
PLANE_BYTES = BLOCK * PANEL  # a block's codes, a byte each
# The fields of a multiplication's call, each an int64. RECORD: bytes of a panel's block; FACTORS: float32 for each
# output; ZERO: the zero point of all groups, or -1 if they have minima.
SOURCE, TARGET, NUM_ROWS, COUNTER, WEIGHTS, RECORD, NUM_BLOCKS = range(7)
FACTORS, BIAS, NUM_OUTPUTS, CLAIM, ITEM, ZERO = range(7, 13)
NUM_FIELDS = 13
# The fields of a call that rounds rows, and of one that looks rows up; SOURCE to COUNTER come first.
WIDTH, BLOCKS_OF_ROW, NUMBER_BYTES = range(4, 7)
NUM_ROUNDING_FIELDS = 7
LOOK_WIDTH, IDS, LOOK_RECORD, LOOK_BLOCKS, LOOK_FACTORS, LOOK_ITEM, LOOK_ZERO, LOOK_BITS, LOOK_GROUP = range(4, 13)
NUM_LOOKING_FIELDS = 13
# A row's record: bytes, scale, then the sums of all, of the first and of the second sixteen, times the scale.
ROW_RECORD, SCALE_PLACE, SUM_PLACES = 64, 32, (36, 40, 44)
LARGEST, SMALLEST = 127.0, 1e-30  # rows' numbers are rounded to -127..127; blocks of smaller numbers become zeros
MAGIC = 12582912.0  # 1.5 * 2**23: added to a small float32 it leaves the nearest integer in the low bits
HAS_WIDE_VNNI = has_feature("avx512vnni")
HAS_VNNI = HAS_WIDE_VNNI or has_feature("avxvnni")
HAS_AVX2 = has_feature("avx2")
# Rows and vectors of a turn must fit the processor's registers, 32 of sixteen lanes or 16 of eight.
WIDE = LANES if HAS_WIDE_VNNI else LANES // 2
WIDE_BYTES = 4 * WIDE
ROWS, VECTORS = (6, PANEL // WIDE) if HAS_WIDE_VNNI else (4, 2)
TURNS = PANEL // WIDE // VECTORS  # over a panel's vectors
WIDE_INTS, WIDE_FLOATS = ir.VectorType(INT, WIDE), ir.VectorType(FLOAT, WIDE)
WIDE_SHORTS, WIDE_CHARS = ir.VectorType(ir.IntType(16), 2 * WIDE), ir.VectorType(ir.IntType(8), 4 * WIDE)
CHUNK = 2  # blocks that are unpacked at a time, so that they stay in the L1 cache
ROWS_AT_A_TIME = 8


class Layout(NamedTuple):
    """How the blocks of a type lie in memory, packed and unpacked.

    Packed, in bytes: a nibble of each code, low nibbles for the first half of the steps; then a plane of the fifth bit
    or of the fifth and sixth; codes of eight bits lie as they are. Unpacked: planes of a byte a code, float32 scales,
    float32 minima.
    """

    bits: int
    group: int

    @property
    def num_groups(self) -> int:
        return BLOCK // self.group

    @property
    def code_bytes(self) -> int:
        return PLANE_BYTES * self.bits // 8

    @property
    def pair_bytes(self) -> int:
        """Of a block's scales, or of its minima."""
        return HALF_BYTES * PANEL * self.num_groups

    @property
    def num_planes(self) -> int:
        """Bytes of eight bits are too large for products without VNNI and are split in nibbles."""
        return 2 if self.bits == 8 and not HAS_VNNI else 1

    @property
    def flush(self) -> int:
        """Without VNNI, the steps whose products are summed in 16 bits; more might not fit."""
        return min(self.group // STEP, {4: 8, 5: 4, 6: 2, 8: 8}[self.bits])

    @property
    def scales_place(self) -> int:
        return self.num_planes * PLANE_BYTES

    @property
    def minima_place(self) -> int:
        return self.scales_place + self.num_groups * PANEL_BYTES

    @property
    def unpacked_bytes(self) -> int:
        return self.minima_place + self.num_groups * PANEL_BYTES


MOST_UNPACKED = max(Layout(8, 16).unpacked_bytes, Layout(4, 16).unpacked_bytes)


def _layout(bits: Any, group: Any) -> Layout:
    return Layout(bits.literal_value, group.literal_value)


def _emit_ints(number: int, kind: Any) -> Value:
    return ir.Constant(kind, [number] * kind.count)


def _emit_nibbles(builder: Builder, bytes_: Value, shift: int, mask: int) -> Value:
    """Bits of all bytes, shifted right (left if negative) and masked."""
    if shift:
        move = builder.lshr if shift > 0 else builder.shl
        bytes_ = move(bytes_, _emit_ints(abs(shift), INT_VECTOR))
    return builder.and_(bytes_, _emit_ints(mask * 0x01010101, INT_VECTOR))


def _emit_codes(builder: Builder, layout: Layout, packed: Value, place: int) -> dict[int, list[Value]]:
    """The codes of all steps for a vector of sixteen outputs: the planes of each step."""

    def load(row: int) -> Value:
        return emit_load(builder, emit_offset(builder, packed, row * PANEL_BYTES + place * VECTOR_BYTES), INT_VECTOR)

    if layout.bits == 8:
        whole = {step: load(step) for step in range(STEPS)}
        if layout.num_planes == 1:
            return {step: [codes] for step, codes in whole.items()}
        return {step: [_emit_nibbles(builder, codes, shift, 15) for shift in (0, 4)] for step, codes in whole.items()}
    half = STEPS // 2
    codes = {}
    for step in range(half):
        both = load(step)
        codes[step], codes[step + half] = (_emit_nibbles(builder, both, shift, 15) for shift in (0, 4))
    extra = layout.bits - 4  # bits in further planes, each of which serves 8 // extra steps
    if extra:
        steps_a_plane = 8 // extra
        planes = [load(half + plane) for plane in range(STEPS // steps_a_plane)]
        for step in range(STEPS):
            shift = step % steps_a_plane * extra - 4
            high = _emit_nibbles(builder, planes[step // steps_a_plane], shift, (2**extra - 1) << 4)
            codes[step] = builder.or_(codes[step], high)
    return {step: [each] for step, each in codes.items()}


def _emit_halves(builder: Builder, address: Value) -> Value:
    return _emit_widened(builder, emit_load(builder, address, HALF_VECTOR))


def _emit_widened(builder: Builder, halves: Value) -> Value:
    """Sixteen finite float16 numbers as float32; exact."""
    bits = builder.zext(halves, INT_VECTOR)
    size = builder.shl(builder.and_(bits, _emit_ints(0x7FFF, INT_VECTOR)), _emit_ints(13, INT_VECTOR))
    sign = builder.shl(builder.and_(bits, _emit_ints(0x8000, INT_VECTOR)), _emit_ints(16, INT_VECTOR))
    scaled = builder.fmul(builder.bitcast(size, VECTOR), emit_constant(2.0**112))  # the exponents' biases differ
    return builder.bitcast(builder.or_(builder.bitcast(scaled, INT_VECTOR), sign), VECTOR)


@intrinsic(prefer_literal=True)
def _unpack(
    _context: Any, bits: Any, group: Any, packed: Any, record: Any, unpacked: Any, num_blocks: Any, zero: Any
) -> Any:
    """Unpack a panel's next `num_blocks` blocks."""
    layout = _layout(bits, group)

    def codegen(context: Any, builder: Builder, _signature: Any, values: Any) -> Value:
        _, _, packed, record, unpacked, num_blocks, zero = values
        has_minima = builder.icmp_signed("<", zero, ir.Constant(zero.type, 0))
        zero_point = emit_splat(builder, builder.sitofp(zero, FLOAT))
        with emit_rolled_loop(builder, num_blocks) as loop:
            source = builder.add(packed, builder.mul(loop.index, record))
            target = emit_address(builder, unpacked, loop.index, layout.unpacked_bytes)
            for place in range(PANEL_VECTORS):
                for step, planes in _emit_codes(builder, layout, source, place).items():
                    for plane, codes in enumerate(planes):
                        shift = plane * PLANE_BYTES + step * PANEL_BYTES + place * VECTOR_BYTES
                        emit_store(builder, codes, emit_offset(builder, target, shift))
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


def _emit_wide_splat(builder: Builder, scalar: Value) -> Value:
    kind = ir.VectorType(scalar.type, WIDE)
    first = builder.insert_element(ir.Constant(kind, ir.Undefined), scalar, ir.Constant(INT, 0))
    return builder.shuffle_vector(first, ir.Constant(kind, ir.Undefined), ir.Constant(WIDE_INTS, [0] * WIDE))


def _emit_instruction(builder: Builder, name: str, result: Any, *operands: Value) -> Value:
    kind = ir.FunctionType(result, [operand.type for operand in operands])
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, f"llvm.x86.{name}"), operands)


def _emit_four_products(builder: Builder, total: Value, codes: Value, numbers: Value) -> Value:
    """int32 totals plus four products each of unsigned codes and signed numbers; with VNNI."""
    prefix, register = ("", "v") if HAS_WIDE_VNNI else ("{vex} ", "x")
    kind = ir.FunctionType(WIDE_INTS, [WIDE_INTS] * 3)
    constraints = f"={register},0,{register},{register}"
    return builder.call(ir.InlineAsm(kind, f"{prefix}vpdpbusd $3, $2, $0", constraints), [total, codes, numbers])


def _emit_two_products(builder: Builder, codes: Value, numbers: Value) -> Value:
    """Sums of two products each in 16 bits, which hold them. Without AVX2, by plain arithmetic."""
    if HAS_AVX2:
        chars = (builder.bitcast(each, WIDE_CHARS) for each in (codes, numbers))
        return _emit_instruction(builder, "avx2.pmadd.ub.sw", WIDE_SHORTS, *chars)
    codes, numbers = (builder.bitcast(each, WIDE_SHORTS) for each in (codes, numbers))
    eight, low = _emit_ints(8, WIDE_SHORTS), _emit_ints(0xFF, WIDE_SHORTS)
    first = builder.mul(builder.and_(codes, low), builder.ashr(builder.shl(numbers, eight), eight))
    second = builder.mul(builder.lshr(codes, eight), builder.ashr(numbers, eight))
    return builder.add(first, second)


def _emit_pair_sums(builder: Builder, shorts: Value, factor: int) -> Value:
    """Sums of two 16-bit numbers each, times a factor, in 32 bits. Without AVX2, by plain arithmetic."""
    if HAS_AVX2:
        return _emit_instruction(builder, "avx2.pmadd.wd", WIDE_INTS, shorts, _emit_ints(factor, WIDE_SHORTS))
    both, sixteen = builder.bitcast(shorts, WIDE_INTS), _emit_ints(16, WIDE_INTS)
    pair = builder.add(builder.ashr(builder.shl(both, sixteen), sixteen), builder.ashr(both, sixteen))
    return builder.mul(pair, _emit_ints(factor, WIDE_INTS))


class Tile(NamedTuple):
    """A few rows and a few vectors of one unpacked block. rows: addresses of their records."""

    rows: list[Value]
    block: Value

    def codes(self, builder: Builder, plane: int, step: int) -> list[Value]:
        shift = plane * PLANE_BYTES + step * PANEL_BYTES
        return self.vectors(builder, shift, WIDE_INTS)

    def vectors(self, builder: Builder, shift: int, kind: Any) -> list[Value]:
        places = [shift + place * WIDE_BYTES for place in range(VECTORS)]
        return [emit_load(builder, emit_offset(builder, self.block, place), kind) for place in places]

    def numbers(self, builder: Builder, row: int, step: int) -> Value:
        return _emit_wide_splat(builder, emit_load(builder, emit_offset(builder, self.rows[row], step * STEP), INT))

    def floats(self, builder: Builder, row: int, place: int) -> Value:
        return _emit_wide_splat(builder, emit_load(builder, emit_offset(builder, self.rows[row], place), FLOAT))


Sums = list[list[Value]]  # for each row and vector


def _emit_group_sums(builder: Builder, layout: Layout, tile: Tile, steps: range) -> Sums:
    """The integer sums over a group's steps."""
    rows, vectors = range(len(tile.rows)), range(VECTORS)
    totals: Sums = [[_emit_ints(0, WIDE_INTS) for _ in vectors] for _ in rows]
    if HAS_VNNI:
        for step in steps:
            codes = tile.codes(builder, 0, step)
            for row in rows:
                numbers = tile.numbers(builder, row, step)
                totals[row] = [
                    _emit_four_products(builder, total, each, numbers)
                    for total, each in zip(totals[row], codes, strict=True)
                ]
        return totals
    for plane in range(layout.num_planes):
        for start in range(steps.start, steps.stop, layout.flush):
            shorts: Sums = [[_emit_ints(0, WIDE_SHORTS) for _ in vectors] for _ in rows]
            for step in range(start, start + layout.flush):
                codes = tile.codes(builder, plane, step)
                for row in rows:
                    numbers = tile.numbers(builder, row, step)
                    shorts[row] = [
                        builder.add(total, _emit_two_products(builder, each, numbers))
                        for total, each in zip(shorts[row], codes, strict=True)
                    ]
            for row in rows:
                totals[row] = [
                    builder.add(total, _emit_pair_sums(builder, each, 16**plane))
                    for total, each in zip(totals[row], shorts[row], strict=True)
                ]
    return totals


def _emit_fused(builder: Builder, one: Value, other: Value, total: Value) -> Value:
    kind = ir.FunctionType(WIDE_FLOATS, [WIDE_FLOATS] * 3)
    function = cgutils.get_or_insert_function(builder.module, kind, f"llvm.fma.v{WIDE}f32")
    return builder.call(function, [one, other, total])


def _emit_tile(builder: Builder, layout: Layout, tile: Tile, places: list[list[Value]]) -> None:
    """Add one block's products to float32 totals. places: their addresses."""
    steps_a_group = layout.group // STEP
    for group in range(layout.num_groups):
        sums = _emit_group_sums(builder, layout, tile, range(group * steps_a_group, (group + 1) * steps_a_group))
        shift = group * PANEL_BYTES
        scales = tile.vectors(builder, layout.scales_place + shift, WIDE_FLOATS)
        minima = tile.vectors(builder, layout.minima_place + shift, WIDE_FLOATS)
        minima = [builder.fneg(minimum) for minimum in minima]
        for row, row_sums in enumerate(sums):
            factor = tile.floats(builder, row, SCALE_PLACE)
            number_sum = tile.floats(builder, row, SUM_PLACES[0 if layout.num_groups == 1 else 1 + group])
            for place, whole, scale, minimum in zip(places[row], row_sums, scales, minima, strict=True):
                total = emit_load(builder, place, WIDE_FLOATS)
                scaled = builder.fmul(builder.sitofp(whole, WIDE_FLOATS), scale)
                total = _emit_fused(builder, scaled, factor, total)
                emit_store(builder, _emit_fused(builder, minimum, number_sum, total), place)


@intrinsic(prefer_literal=True)
def _take_turn(
    _context: Any,
    bits: Any,
    group: Any,
    num_rows: Any,
    source: Any,
    source_step: Any,
    unpacked: Any,
    num_blocks: Any,
    sums: Any,
    asked: Any,
    asked_step: Any,
) -> Any:
    """sums[r] += row r * unpacked blocks for 1 to `ROWS` rows, `source_step` bytes apart, and `VECTORS` vectors.

    asked: the first address to prefetch; each block prefetches its share of a block, `asked_step` bytes apart."""
    layout = _layout(bits, group)
    num_asked = -(-(layout.code_bytes + 2 * layout.pair_bytes) // (VECTOR_BYTES * TURNS))

    def codegen(context: Any, builder: Builder, _signature: Any, values: Any) -> Value:
        _, _, num_rows, source, source_step, unpacked, num_blocks, sums, asked, asked_step = values
        after = builder.append_basic_block("after")
        switch = builder.switch(num_rows, after)
        for count in range(1, ROWS + 1):
            case = builder.append_basic_block(f"rows{count}")
            switch.add_case(ir.Constant(num_rows.type, count), case)
            builder.position_at_end(case)
            starts = [builder.add(source, emit_times(builder, source_step, row)) for row in range(count)]
            places = [
                [emit_offset(builder, sums, row * PANEL_BYTES + place * WIDE_BYTES) for place in range(VECTORS)]
                for row in range(count)
            ]
            with emit_rolled_loop(builder, num_blocks) as loop:
                rows = [emit_address(builder, start, loop.index, ROW_RECORD) for start in starts]
                block = emit_address(builder, unpacked, loop.index, layout.unpacked_bytes)
                first = builder.add(asked, builder.mul(loop.index, emit_times(builder, asked_step, num_asked)))
                for place in range(num_asked):
                    emit_prefetch(builder, builder.add(first, emit_times(builder, asked_step, place)))
                _emit_tile(builder, layout, Tile(rows, block), places)
            builder.branch(after)
        builder.position_at_end(after)
        return context.get_dummy_value()

    return types.void(bits, group, *[types.int64] * 8), codegen


@intrinsic
def _unpacked_room(_context: Any) -> Any:
    """Allocate room for the blocks of a chunk on the stack; return its address."""

    def codegen(_context: Any, builder: Builder, _signature: Any, _values: Any) -> Value:
        space = cgutils.alloca_once(builder, ir.ArrayType(VECTOR, CHUNK * MOST_UNPACKED // VECTOR_BYTES))
        return builder.ptrtoint(space, ir.IntType(64))

    return types.int64(), codegen


@intrinsic
def _times(_context: Any, vectors: Any, others: Any) -> Any:
    """A row's sums are multiplied by the outputs' factors."""

    def codegen(context: Any, builder: Builder, _signature: Any, values: Any) -> Value:
        vectors, others = values
        for place in range(PANEL_VECTORS):
            address, other = (emit_offset(builder, base, place * VECTOR_BYTES) for base in (vectors, others))
            product = builder.fmul(emit_load(builder, address, VECTOR), emit_load(builder, other, VECTOR))
            emit_store(builder, product, address)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), codegen


@nb.njit(inline="always")
def _multiply(call: Any, bits: Any, group: Any) -> None:
    """One thread's share of a call: it claims a few panels at a time until all are taken."""
    sums, unpacked = room(), _unpacked_room()
    counter = np.int64(call.ctypes.data) + 8 * COUNTER
    num_panels = (call[NUM_OUTPUTS] + PANEL - 1) // PANEL
    num_blocks, record = call[NUM_BLOCKS], call[RECORD]
    num_asked = (record // VECTOR_BYTES + TURNS - 1) // TURNS
    source_step, target_step = num_blocks * ROW_RECORD, call[NUM_OUTPUTS] * call[ITEM]
    while True:
        first = raise_counter(counter, call[CLAIM])
        if first >= num_panels:
            return
        for panel in range(first, min(first + call[CLAIM], num_panels)):
            weights = call[WEIGHTS] + panel * num_blocks * record
            for start in range(0, call[NUM_ROWS], MOST_ROWS):
                num_rows = min(MOST_ROWS, call[NUM_ROWS] - start)
                source = call[SOURCE] + start * source_step
                num_tiles = (num_rows + ROWS - 1) // ROWS
                fill(sums, num_rows * PANEL_VECTORS, np.float32(0))
                block = 0
                while block < num_blocks:
                    count = min(CHUNK, num_blocks - block)
                    _unpack(bits, group, weights + block * record, record, unpacked, count, call[ZERO])
                    asked = weights + (block + 2 * count) * record  # every turn prefetches its share of a later chunk
                    asked_step = (VECTOR_BYTES + num_tiles - 1) // num_tiles
                    row = 0
                    while row < num_rows:
                        left = num_rows - row
                        rows = left if left <= ROWS else min(ROWS, (left + 1) // 2)  # so that the last has several
                        shift = 0
                        while shift < PANEL_BYTES:
                            _take_turn(
                                bits,
                                group,
                                rows,
                                source + row * source_step + block * ROW_RECORD,
                                source_step,
                                unpacked + shift,
                                count,
                                sums + row * PANEL_BYTES + shift,
                                asked,
                                asked_step,
                            )
                            shift += VECTORS * WIDE_BYTES
                            asked += count * asked_step * num_asked
                        row += rows
                    block += count
                target = call[TARGET] + start * target_step + panel * PANEL * call[ITEM]
                num_left = min(PANEL, call[NUM_OUTPUTS] - panel * PANEL)
                for row in range(num_rows):
                    total = sums + row * PANEL_BYTES
                    _times(total, call[FACTORS] + panel * PANEL_BYTES)
                    if call[BIAS] != 0:
                        add(total, call[BIAS] + panel * PANEL_BYTES, PANEL_VECTORS)
                    if call[ITEM] == HALF_BYTES:
                        write(total, target + row * target_step, num_left, np.uint16(0))
                    else:
                        write(total, target + row * target_step, num_left, np.float32(0))


def multiply_4_of_16(fields: Any) -> None:
    """One thread's share of a call with codes of 4 bits in groups of 16. The other functions have other widths."""
    _multiply(nb.carray(fields, NUM_FIELDS), 4, 16)


def multiply_4_of_32(fields: Any) -> None:
    _multiply(nb.carray(fields, NUM_FIELDS), 4, 32)


def multiply_5_of_16(fields: Any) -> None:
    _multiply(nb.carray(fields, NUM_FIELDS), 5, 16)


def multiply_5_of_32(fields: Any) -> None:
    _multiply(nb.carray(fields, NUM_FIELDS), 5, 32)


def multiply_6_of_16(fields: Any) -> None:
    _multiply(nb.carray(fields, NUM_FIELDS), 6, 16)


def multiply_6_of_32(fields: Any) -> None:
    _multiply(nb.carray(fields, NUM_FIELDS), 6, 32)


def multiply_8_of_16(fields: Any) -> None:
    _multiply(nb.carray(fields, NUM_FIELDS), 8, 16)


def multiply_8_of_32(fields: Any) -> None:
    _multiply(nb.carray(fields, NUM_FIELDS), 8, 32)


SHARES = {
    (4, 16): multiply_4_of_16,
    (4, 32): multiply_4_of_32,
    (5, 16): multiply_5_of_16,
    (5, 32): multiply_5_of_32,
    (6, 16): multiply_6_of_16,
    (6, 32): multiply_6_of_32,
    (8, 16): multiply_8_of_16,
    (8, 32): multiply_8_of_32,
}


def _emit_reduced(builder: Builder, vector: Value, operation: str) -> Value:
    """One number from sixteen integers. operation: "add" or "smax"."""
    kind = ir.FunctionType(INT, [INT_VECTOR])
    name = f"llvm.vector.reduce.{operation}.v{LANES}i32"
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), [vector])


@intrinsic
def _round_block(_context: Any, source: Any, is_half: Any, target: Any) -> Any:
    """Round 32 numbers at `source`, float32 or bfloat16, to a record at `target`.

    The largest number becomes 127. An infinity or what is no number gives a scale that spoils all results."""

    def codegen(context: Any, builder: Builder, _signature: Any, values: Any) -> Value:
        source, is_half, target = values
        slots = [cgutils.alloca_once(builder, VECTOR) for _ in range(2)]
        with builder.if_else(is_half) as (halves, floats):
            with halves:
                for place, slot in enumerate(slots):
                    half = emit_load(builder, emit_offset(builder, source, place * HALF_BYTES * LANES), HALF_VECTOR)
                    bits = builder.shl(builder.zext(half, INT_VECTOR), _emit_ints(16, INT_VECTOR))
                    builder.store(builder.bitcast(bits, VECTOR), slot)
            with floats:
                for place, slot in enumerate(slots):
                    builder.store(emit_load(builder, emit_offset(builder, source, place * VECTOR_BYTES), VECTOR), slot)
        numbers = [builder.load(slot) for slot in slots]
        sizes = [
            builder.and_(builder.bitcast(each, INT_VECTOR), _emit_ints(0x7FFFFFFF, INT_VECTOR)) for each in numbers
        ]

        # Without the sign, bits sort like magnitudes, and what is no number is largest.
        larger = builder.select(builder.icmp_signed(">", *sizes), *sizes)
        largest = builder.bitcast(_emit_reduced(builder, larger, "smax"), FLOAT)
        is_zero = builder.fcmp_ordered("<", largest, ir.Constant(FLOAT, SMALLEST))
        most = ir.Constant(FLOAT, LARGEST)
        factor = builder.select(is_zero, ir.Constant(FLOAT, 0.0), builder.fdiv(most, largest))
        scale = builder.fdiv(largest, most)
        emit_store(builder, scale, emit_offset(builder, target, SCALE_PLACE))
        sums = []
        for place, each in enumerate(numbers):
            scaled = builder.fmul(each, emit_splat(builder, factor))
            rounded = builder.bitcast(builder.fadd(scaled, emit_constant(MAGIC)), INT_VECTOR)
            chars = builder.trunc(rounded, ir.VectorType(ir.IntType(8), LANES))
            emit_store(builder, chars, emit_offset(builder, target, place * LANES))
            sums.append(_emit_reduced(builder, builder.sext(chars, INT_VECTOR), "add"))
        for place, total in zip(SUM_PLACES, (builder.add(*sums), *sums), strict=True):
            number = builder.fmul(builder.sitofp(total, FLOAT), scale)
            emit_store(builder, number, emit_offset(builder, target, place))
        return context.get_dummy_value()

    return types.void(types.int64, types.boolean, types.int64), codegen


@nb.njit(inline="always")
def _round_rows(call: Any) -> None:
    counter = np.int64(call.ctypes.data) + 8 * COUNTER
    width, item, num_blocks = call[WIDTH], call[NUMBER_BYTES], call[BLOCKS_OF_ROW]
    last = np.zeros(BLOCK, np.float32)
    num_whole, rest = width // BLOCK, width % BLOCK * item
    while True:
        first = raise_counter(counter, ROWS_AT_A_TIME)
        if first >= call[NUM_ROWS]:
            return
        for row in range(first, min(first + ROWS_AT_A_TIME, call[NUM_ROWS])):
            source, target = call[SOURCE] + row * width * item, call[TARGET] + row * num_blocks * ROW_RECORD
            for block in range(num_whole):
                _round_block(source + block * BLOCK * item, item == HALF_BYTES, target + block * ROW_RECORD)
            if rest:
                copy_bytes(last.ctypes.data, source + num_whole * BLOCK * item, rest)
                _round_block(last.ctypes.data, item == HALF_BYTES, target + num_whole * ROW_RECORD)


def round_blocks(fields: Any) -> None:
    """One thread's share of a call that rounds rows to records of signed bytes, a few rows at a time."""
    _round_rows(nb.carray(fields, NUM_ROUNDING_FIELDS))


@intrinsic
def _widened(_context: Any, address: Any) -> Any:
    """The float16 number at an address, as float32."""

    def codegen(_context: Any, builder: Builder, _signature: Any, values: Any) -> Value:
        half = emit_load(builder, values[0], ir.IntType(16))
        empty = ir.Constant(HALF_VECTOR, [0] * LANES)
        numbers = _emit_widened(builder, builder.insert_element(empty, half, ir.Constant(INT, 0)))
        return builder.extract_element(numbers, ir.Constant(INT, 0))

    return types.float32(types.int64), codegen


@nb.njit(cache=True)
def _code(block: int, bits: int, step: int, place: int) -> Any:
    """A code of a packed block. block: its address; place: of the byte among a step's."""
    codes = nb.carray(pointer(block, np.uint8(0)), PLANE_BYTES)
    if bits == 8:
        return np.int64(codes[step * PANEL_BYTES + place])
    half = STEPS // 2
    code = np.int64(codes[step % half * PANEL_BYTES + place]) >> (step // half * 4) & 15
    extra = bits - 4
    if extra:
        steps_a_plane = 8 // extra
        plane = np.int64(codes[(half + step // steps_a_plane) * PANEL_BYTES + place])
        code |= (plane >> (step % steps_a_plane * extra) & (2**extra - 1)) << 4
    return code


@nb.njit(cache=True)
def _unpack_row(block: int, bits: int, group: int, output: int, zero: int, numbers: Any) -> None:
    """Write a block's weights of one output of its panel, but for the output's factor."""
    scales = block + PLANE_BYTES * bits // 8
    minima = scales + HALF_BYTES * PANEL * (BLOCK // group)
    for place in range(BLOCK):
        pair = HALF_BYTES * (place // group * PANEL + output)
        scale = _widened(scales + pair)
        minimum = _widened(minima + pair) if zero < 0 else scale * np.float32(zero)
        code = _code(block, bits, place // STEP, output * STEP + place % STEP)
        numbers[place] = scale * np.float32(code) - minimum


@nb.njit(inline="always")
def _look_up(call: Any) -> None:
    counter = np.int64(call.ctypes.data) + 8 * COUNTER
    ids = nb.carray(pointer(call[IDS], np.int64(0)), call[NUM_ROWS])
    width, item, record = call[LOOK_WIDTH], call[LOOK_ITEM], call[LOOK_RECORD]
    numbers = np.empty(BLOCK, np.float32)
    address = np.int64(numbers.ctypes.data)
    while True:
        row = raise_counter(counter, 1)
        if row >= call[NUM_ROWS]:
            return
        panel, output = ids[row] // PANEL, ids[row] % PANEL
        factor = nb.carray(pointer(call[LOOK_FACTORS] + 4 * ids[row], np.float32(0)), 1)[0]
        block = call[SOURCE] + panel * call[LOOK_BLOCKS] * record
        for start in range(0, width, BLOCK):
            _unpack_row(block, call[LOOK_BITS], call[LOOK_GROUP], output, call[LOOK_ZERO], numbers)
            numbers *= factor
            if item == HALF_BYTES:
                narrow(address, BLOCK // LANES, address)
            copy_bytes(call[TARGET] + (row * width + start) * item, address, min(BLOCK, width - start) * item)
            block += record


def look_up_groups(fields: Any) -> None:
    """One thread's share of a call that unpacks the rows `IDS` of a matrix."""
    _look_up(nb.carray(fields, NUM_LOOKING_FIELDS))
