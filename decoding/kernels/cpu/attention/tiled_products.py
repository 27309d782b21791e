# ruff: noqa: ARG001 - an intrinsic receives the types of its arguments, which the signature fixes anyway
"""The two products of exact attention in the processor's tiles (AMX), of staged keys and values in pairs of bfloat16.

A tile of keys is sixteen pairs along the width by sixteen keys, one of values sixteen pairs of keys by sixteen columns:
as both are staged. Addresses are integers, as in `lanes`.
Invariant: a number of the result is one sum, of thirty-twos in order of width or of keys, each as of `products.tiles`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from decoding.kernels.cpu.attention.products import NARROW
from decoding.kernels.cpu.lanes import VECTOR_BYTES, Builder, Value, emit_offset, emit_rolled_loop, emit_times
from decoding.kernels.cpu.products.tiles import (
    FIRST_NUMBERS,
    FIRST_WEIGHTS,
    HAS_TILES,
    NUM_TOTALS,
    emit_tile,
    emit_tile_load,
    emit_tile_store,
)


class Tiles(NamedTuple):
    """Of keys or values, side by side. start: address of the first; line: the bytes from one pair to the next; beside:
    from one tile to that of the next sixteen results; behind: to that of the next sixteen pairs."""

    start: int
    line: int
    beside: int
    behind: int


def _kernel(num_vectors: int, *, adds: bool) -> Any:
    """results[r, 16 v + c] = the sum over rows[r, k] * tiles[v][k, c], or that added to what is there. rows: as many as
    tiles have been shaped for; count: tiles along the sum."""

    def multiply(_context: Any, rows: Any, tiles: Any, count: Any, results: Any) -> Any:
        def codegen(context: Any, builder: Builder, _signature: Any, values: Any) -> Value:
            if HAS_TILES:
                rows, tiles, results = (cgutils.unpack_tuple(builder, values[place]) for place in (0, 1, 3))
                _emit_product(builder, num_vectors, adds, (rows, tiles, values[2], results))
            return context.get_dummy_value()

        return types.void(rows, tiles, types.int64, results), codegen

    return intrinsic(multiply)


def _emit_product(builder: Builder, num_vectors: int, adds: bool, given: tuple[Any, Any, Value, Any]) -> None:
    (row, row_step), (first, line, beside, behind), count, (result, result_step) = given
    totals = [(place, emit_offset(builder, result, place * VECTOR_BYTES)) for place in range(num_vectors)]
    for tile, address in totals:
        if adds:
            emit_tile_load(builder, tile, address, result_step)
        else:
            emit_tile(builder, "tilezero", tile)
    with emit_rolled_loop(builder, count) as loop:
        numbers = builder.add(row, emit_times(builder, loop.index, VECTOR_BYTES))
        emit_tile_load(builder, FIRST_NUMBERS, numbers, row_step)
        start = builder.add(first, builder.mul(loop.index, behind))
        for tile, _ in totals:
            weights = FIRST_WEIGHTS + tile % 2
            emit_tile_load(builder, weights, builder.add(start, emit_times(builder, beside, tile)), line)
            emit_tile(builder, "tdpbf16ps", tile, FIRST_NUMBERS, weights)
    for tile, address in totals:
        emit_tile_store(builder, tile, address, result_step)


score, add_wide, add_narrow = (
    _kernel(NUM_TOTALS, adds=False),
    _kernel(NUM_TOTALS, adds=True),
    _kernel(NARROW, adds=True),
)
