# ruff: noqa: ARG001 - an intrinsic receives the types of its arguments, which the signature fixes anyway
"""Adds the products of up to sixteen rows and a panel's unpacked blocks to float32 totals, in tiles (AMX).

Invariant: the bits are those of `products`: a group's sums are integers, and their scaling is the same code. Addresses
are integers, in bytes, which nothing checks.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from decoding.kernels.cpu.lanes import (
    INT_VECTOR,
    VECTOR_BYTES,
    Builder,
    Value,
    emit_address,
    emit_load,
    emit_offset,
    emit_rolled_loop,
)
from decoding.kernels.cpu.products.grouped.layout import ROW_RECORD, STEP, Layout, layout_of
from decoding.kernels.cpu.products.grouped.products import Row, Tile, emit_scaled, part_of
from decoding.kernels.cpu.products.panels import PANEL_BYTES, PANEL_VECTORS
from decoding.kernels.cpu.products.tiles import (
    FIRST_NUMBERS,
    FIRST_WEIGHTS,
    HAS_TILES,
    TILE_ROWS,
    WORD,
    emit_tile,
    emit_tile_load,
    emit_tile_store,
)


@intrinsic(prefer_literal=True)
def take_tiled_turn(
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
) -> Any:
    """sums[r] += row r * blocks for 1 to 16 rows, for which tiles are shaped, with a group's steps.

    As `products.take_turn`, of all vectors of a panel."""
    layout = layout_of(bits, group, scale_bytes)

    def codegen(context: Any, builder: Builder, _signature: Any, values: Any) -> Value:
        _, _, _, num_rows, source, source_step, packed, record, unpacked, num_blocks, sums = values
        if not HAS_TILES:
            return context.get_dummy_value()
        room = cgutils.alloca_once(builder, ir.ArrayType(INT_VECTOR, TILE_ROWS * PANEL_VECTORS))
        wholes = builder.ptrtoint(room, WORD)
        with emit_rolled_loop(builder, num_blocks) as loop:
            first = emit_address(builder, source, loop.index, ROW_RECORD)
            block = emit_address(builder, unpacked, loop.index, layout.unpacked_bytes)
            codes = builder.add(packed, builder.mul(loop.index, record)) if layout.bits == 8 else block
            for each in range(layout.num_groups):
                _emit_group_sums(builder, layout, each, (first, source_step), codes, wholes)
                tile = Tile([], codes, block)
                scales = tile.pairs(builder, layout.scales_place + each * PANEL_BYTES)
                minima = tile.pairs(builder, layout.minima_place + each * PANEL_BYTES)
                negative = [builder.fneg(minimum) for minimum in minima]
                with emit_rolled_loop(builder, num_rows) as rows:
                    row = Row(builder.add(first, builder.mul(rows.index, source_step)))
                    totals, found = (
                        _vectors(builder, emit_address(builder, base, rows.index, PANEL_BYTES))
                        for base in (sums, wholes)
                    )
                    sums_of_row = [emit_load(builder, address, INT_VECTOR) for address in found]
                    emit_scaled(builder, row, part_of(layout, each), totals, sums_of_row, scales, negative)
        return context.get_dummy_value()

    return types.void(bits, group, scale_bytes, *[types.int64] * 8), codegen


def _vectors(builder: Builder, start: Value) -> list[Value]:
    """Where a row's vectors of a panel are."""
    return [emit_offset(builder, start, place * VECTOR_BYTES) for place in range(PANEL_VECTORS)]


def _emit_group_sums(
    builder: Builder, layout: Layout, group: int, rows: tuple[Value, Value], codes: Value, wholes: Value
) -> None:
    """Write a group's integer sums, a panel's for each row. rows: the first one's record, and bytes to the next."""
    start, source_step = rows
    panel_bytes, steps = ir.Constant(WORD, PANEL_BYTES), layout.group // STEP
    emit_tile_load(builder, FIRST_NUMBERS, emit_offset(builder, start, group * layout.group), source_step)
    weights = _vectors(builder, emit_offset(builder, codes, group * steps * PANEL_BYTES))
    for place, (address, target) in enumerate(zip(weights, _vectors(builder, wholes), strict=True)):
        tile = FIRST_WEIGHTS + place % 2
        emit_tile(builder, "tilezero", place)
        emit_tile_load(builder, tile, address, panel_bytes)
        emit_tile(builder, "tdpbsud", place, FIRST_NUMBERS, tile)
        emit_tile_store(builder, place, target, panel_bytes)
