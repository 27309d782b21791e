# ruff: noqa: ARG001 - an intrinsic receives the types of its arguments, which the signature fixes anyway
"""The processor's tiles (AMX): one instruction adds a block's products to sums of sixteen rows and sixteen outputs.

A tile of weights is what lies in a panel: for each step along the input four bytes of each of sixteen outputs. Knows no
panels. Addresses are integers, in bytes, which nothing checks.
Invariant: an output's bits depend on its row and weights alone. Sums of bytes are exact. Of bfloat16 numbers the
products of a tile's even and of its odd places are added up apart, from zero and in order, then both to the total.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, register_jitable

from decoding.kernels.cpu.lanes import (
    LANES,
    VECTOR_BYTES,
    Builder,
    Value,
    emit_address,
    emit_offset,
    emit_prefetch,
    emit_rolled_loop,
    emit_times,
)
from decoding.kernels.processor import multiplies_in_tiles

TILE_ROWS = TILE_STEPS = 16  # at most, of the input and along it
_FEWEST = 8  # rows of bytes; fewer are multiplied in lanes, with the same bits
NUM_TOTALS = 4
FIRST_NUMBERS, FIRST_WEIGHTS = 4, 6  # of the eight tiles those of rows, and those of weights: two each
HAS_TILES = multiplies_in_tiles()
LANE_BYTES = VECTOR_BYTES // LANES  # of a step's weights for one output, and of a row's numbers
CHAR, WORD = ir.IntType(8), ir.IntType(64)
# A tile table's words: sixteen bits for each tile's width in bytes, and a byte for its rows.
_TOTAL_WIDTHS, _WEIGHT_WIDTHS = VECTOR_BYTES * 0x0001000100010001, VECTOR_BYTES * 0x0001000100000000
_NUMBER_PLACES = 0x00010001
_ALL_ROWS = 0x010101010101  # of totals and numbers
_FIRST_ROWS, _SECOND_ROWS = 0x000100000101, 0x010001010000  # of two groups of rows
_WEIGHT_ROWS = 0x0101 << 8 * FIRST_WEIGHTS


def emit_tile(builder: Builder, name: str, *operands: Value | int) -> None:
    """One of the instructions on tiles. Numbers are those of tiles."""
    values = [ir.Constant(CHAR, each) if isinstance(each, int) else each for each in operands]
    kind = ir.FunctionType(ir.VoidType(), [each.type for each in values])
    builder.call(cgutils.get_or_insert_function(builder.module, kind, f"llvm.x86.{name}"), values)


def emit_tile_load(builder: Builder, tile: int, address: Value, step: Value) -> None:
    """Load a tile's rows, `step` bytes apart."""
    emit_tile(builder, "tileloadd64", tile, builder.inttoptr(address, CHAR.as_pointer()), step)


def emit_tile_store(builder: Builder, tile: int, address: Value, step: Value) -> None:
    emit_tile(builder, "tilestored64", tile, builder.inttoptr(address, CHAR.as_pointer()), step)


@intrinsic
def _shape(_context: Any, sizes: Any, num_steps: Any) -> Any:
    """Give tiles these sizes, and so many steps along the input; all of them become zero."""

    def codegen(context: Any, builder: Builder, _signature: Any, values: Any) -> Value:
        sizes, num_steps = values
        if not HAS_TILES:
            return context.get_dummy_value()
        zero, palette, totals, weights = (ir.Constant(WORD, each) for each in (0, 1, _TOTAL_WIDTHS, _WEIGHT_WIDTHS))
        others = builder.add(weights, emit_times(builder, num_steps, LANE_BYTES * _NUMBER_PLACES))
        table = cgutils.alloca_once(builder, ir.ArrayType(WORD, 8))
        for place, word in enumerate([palette, zero, totals, others, zero, zero, sizes, zero]):
            builder.store(word, cgutils.gep_inbounds(builder, table, 0, place))
        emit_tile(builder, "ldtilecfg", builder.bitcast(table, CHAR.as_pointer()))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), codegen


@register_jitable
def shape_tiles(sizes: int, num_rows: int, num_steps: int) -> int:
    """Have tiles of so many rows, one group up to sixteen, else two, and of so many steps; their sizes, a byte each.
    sizes: as they are, 0 before they have any."""
    wanted = num_steps * _WEIGHT_ROWS
    if num_rows <= TILE_ROWS:
        wanted += num_rows * _ALL_ROWS
    else:
        wanted += TILE_ROWS * _FIRST_ROWS + (num_rows - TILE_ROWS) * _SECOND_ROWS
    if wanted != sizes:
        _shape(wanted, num_steps)
    return wanted


@intrinsic
def takes_tiles(_context: Any, num_rows: Any, tag: Any) -> Any:
    """Whether so many rows are multiplied in tiles. tag: as `panels.take_turn` has it."""
    fewest = 1 if tag == types.uint16 else _FEWEST

    def codegen(_context: Any, builder: Builder, _signature: Any, values: Any) -> Value:
        if not HAS_TILES or tag == types.float32:
            return ir.Constant(ir.IntType(1), 0)
        return builder.icmp_signed(">=", values[0], ir.Constant(values[0].type, fewest))

    return types.boolean(types.int64, tag), codegen


@intrinsic(prefer_literal=True)
def take_tiles(
    _context: Any,
    num_groups: Any,
    source: Any,
    source_step: Any,
    weights: Any,
    step_bytes: Any,
    num_tiles: Any,
    sums: Any,
    ahead: Any,
    tag: Any,
) -> Any:
    """sums[r] += row r * weights, of one group of rows and 64 outputs, or of two groups and 32 outputs.

    source_step, step_bytes: bytes from one row to the next, and from one step's weights and one row's sums. num_tiles:
    along the input. ahead: bytes between the weights that are read and those that are prefetched, by one group."""
    tag = types.unliteral(tag)
    groups = num_groups.literal_value
    num_vectors = NUM_TOTALS // groups
    product = "tdpbf16ps" if tag == types.uint16 else "tdpbusd"

    def codegen(context: Any, builder: Builder, _signature: Any, values: Any) -> Value:
        _, source, source_step, weights, step_bytes, num_tiles, sums, ahead, _ = values
        if not HAS_TILES or tag == types.float32:
            return context.get_dummy_value()
        totals = [
            (group * num_vectors + place, emit_offset(builder, start, place * VECTOR_BYTES))
            for group, start in enumerate(_starts(builder, sums, step_bytes, groups))
            for place in range(num_vectors)
        ]
        for tile, address in totals:
            emit_tile_load(builder, tile, address, step_bytes)
        tile_bytes = emit_times(builder, step_bytes, TILE_STEPS)
        with emit_rolled_loop(builder, num_tiles) as loop:
            first = emit_address(builder, source, loop.index, TILE_STEPS * LANE_BYTES)
            for group, start in enumerate(_starts(builder, first, source_step, groups)):
                emit_tile_load(builder, FIRST_NUMBERS + group, start, source_step)
            block = builder.add(weights, builder.mul(loop.index, tile_bytes))
            for place in range(num_vectors):
                tile = FIRST_WEIGHTS + place % 2
                emit_tile_load(builder, tile, emit_offset(builder, block, place * VECTOR_BYTES), step_bytes)
                for group in range(groups):
                    emit_tile(builder, product, group * num_vectors + place, FIRST_NUMBERS + group, tile)
            if groups == 1:
                for step in range(TILE_STEPS):
                    asked = builder.add(builder.add(block, ahead), emit_times(builder, step_bytes, step))
                    for place in range(num_vectors):
                        emit_prefetch(builder, emit_offset(builder, asked, place * VECTOR_BYTES))
        for tile, address in totals:
            emit_tile_store(builder, tile, address, step_bytes)
        return context.get_dummy_value()

    return types.void(num_groups, *[types.int64] * 7, tag), codegen


def _starts(builder: Builder, first: Value, step: Value, groups: int) -> list[Value]:
    """Where each group of rows begins."""
    return [builder.add(first, emit_times(builder, step, group * TILE_ROWS)) for group in range(groups)]


@intrinsic
def release_tiles(_context: Any) -> Any:
    """The thread is through with them: else the system keeps them whenever it is interrupted."""

    def codegen(context: Any, builder: Builder, _signature: Any, _values: Any) -> Value:
        if HAS_TILES:
            emit_tile(builder, "tilerelease")
        return context.get_dummy_value()

    return types.void(), codegen
