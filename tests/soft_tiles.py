"""A processor's tiles (AMX), and its products of bfloat16 pairs, by software: `python -m tests.soft_tiles tests/...`
runs pytest's tests with kernels that use them, on a processor that has neither.

The order of sums is the instruction's, as `decoding.kernels.cpu.products.tiles` has it. A tile that is loaded, stored
or multiplied must have been shaped for that, or the process ends. Invariant: each thread has tiles of its own.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from typing import Any

import numba as nb
import numpy as np
import pytest
from llvmlite import binding, ir
from numba import types
from numba.core import cgutils

from decoding.kernels import processor
from decoding.kernels.cache import VARIABLE

IS_INNER = "GANDER_RUNS_IN_SOFT_TILES"
NUM_THREADS, NUM_TILES, TILE_ROWS, ROW_BYTES = 64, 8, 16, 64
WORD = ir.IntType(64)
FEATURES = ("avx512bf16", "amx-tile", "amx-int8", "amx-bf16")
own_thread = types.ExternalFunction("pthread_self", types.uint64())
abort = types.ExternalFunction("abort", types.void())

numbers_of_threads = np.zeros(NUM_THREADS * NUM_TILES * TILE_ROWS * ROW_BYTES, np.uint8)
shapes_of_threads = np.zeros(NUM_THREADS * NUM_TILES * 2, np.int64)  # of each tile its rows, and the bytes of one
owners = np.zeros(NUM_THREADS, np.uint64)
NUMBERS, SHAPES, OWNERS = (each.ctypes.data for each in (numbers_of_threads, shapes_of_threads, owners))


def install() -> None:
    """Before any kernel is imported that multiplies in pairs or in tiles."""
    from decoding.kernels.cpu import halves, lanes

    @nb.njit
    def place() -> int:
        own = nb.carray(lanes.pointer(OWNERS, np.uint64(0)), NUM_THREADS)
        thread = own_thread()
        for number in range(NUM_THREADS):
            if own[number] == 0:
                own[number] = thread
            if own[number] == thread:
                return number
        abort()
        return 0

    @nb.njit
    def shapes() -> Any:
        at = SHAPES + 16 * NUM_TILES * place()
        return nb.carray(lanes.pointer(at, np.int64(0)), (NUM_TILES, 2))

    @nb.njit
    def tile_of(tile: int, tag: Any) -> Any:
        at = NUMBERS + (place() * NUM_TILES + tile) * TILE_ROWS * ROW_BYTES
        return nb.carray(lanes.pointer(at, tag), (TILE_ROWS, ROW_BYTES // 4))

    @nb.njit
    def must(is_right: bool) -> None:
        if not is_right:
            abort()

    @nb.cfunc("void(int64)")
    def ldtilecfg(table: int) -> None:
        words = nb.carray(lanes.pointer(table, np.uint8(0)), ROW_BYTES)
        must(words[0] == 1)
        of_tiles = shapes()
        for tile in range(NUM_TILES):
            of_tiles[tile, 0] = words[48 + tile]
            of_tiles[tile, 1] = words[16 + 2 * tile] + 256 * words[17 + 2 * tile]
            must(of_tiles[tile, 0] <= TILE_ROWS and of_tiles[tile, 1] <= ROW_BYTES)
            tile_of(tile, np.float32(0))[:] = 0

    @nb.cfunc("void()")
    def tilerelease() -> None:
        shapes()[:] = 0

    @nb.cfunc("void(int64)")
    def tilezero(tile: int) -> None:
        must(shapes()[tile, 0] > 0)
        tile_of(tile, np.float32(0))[:] = 0

    @nb.cfunc("void(int64, int64, int64)")
    def tileloadd64(tile: int, address: int, step: int) -> None:
        num_rows, width = shapes()[tile]
        must(num_rows > 0 and width > 0)
        target = tile_of(tile, np.float32(0))
        target[:] = 0
        for row in range(num_rows):
            target[row, : width // 4] = nb.carray(lanes.pointer(address + row * step, np.float32(0)), width // 4)

    @nb.cfunc("void(int64, int64, int64)")
    def tilestored64(tile: int, address: int, step: int) -> None:
        num_rows, width = shapes()[tile]
        must(num_rows > 0 and width > 0)
        for row in range(num_rows):
            target = nb.carray(lanes.pointer(address + row * step, np.float32(0)), width // 4)
            target[:] = tile_of(tile, np.float32(0))[row, : width // 4]

    @nb.njit
    def fitting(total: int, numbers: int, weights: int) -> tuple[int, int, int]:
        """Rows, columns and steps of a product."""
        of_tiles = shapes()
        num_rows, width, num_steps = of_tiles[total, 0], of_tiles[total, 1], of_tiles[weights, 0]
        must(num_rows > 0 and num_rows == of_tiles[numbers, 0] and width == of_tiles[weights, 1])
        must(num_steps > 0 and 4 * num_steps == of_tiles[numbers, 1])
        return num_rows, width // 4, num_steps

    @nb.njit
    def half(pair: int, place: int) -> Any:
        return np.uint32((pair << 16) if place == 0 else (pair & 0xFFFF0000)).view(np.float32)

    @nb.cfunc("void(int64, int64, int64)")
    def tdpbf16ps(total: int, numbers: int, weights: int) -> None:
        num_rows, num_columns, num_steps = fitting(total, numbers, weights)
        sums = tile_of(total, np.float32(0))
        rows, columns = tile_of(numbers, np.uint32(0)), tile_of(weights, np.uint32(0))
        for row in range(num_rows):
            for column in range(num_columns):
                even = odd = np.float32(0)
                for step in range(num_steps):
                    even += half(rows[row, step], 0) * half(columns[step, column], 0)
                    odd += half(rows[row, step], 1) * half(columns[step, column], 1)
                sums[row, column] += np.float32(even + odd)

    @nb.cfunc("void(int64, int64, int64)")
    def tdpbusd(_total: int, _numbers: int, _weights: int) -> None:
        abort()  # of bytes, which take no tiles here

    own = {each.__name__: each for each in (ldtilecfg, tilerelease, tilezero, tileloadd64, tilestored64)}
    own |= {each.__name__: each for each in (tdpbf16ps, tdpbusd)}
    for name, function in own.items():
        binding.add_symbol(f"soft_{name}", function.address)

    def emit_tile(builder: Any, name: str, *operands: Any) -> None:
        values = []
        for each in operands:
            if isinstance(each, int):
                values.append(ir.Constant(WORD, each))
            else:
                values.append(builder.ptrtoint(each, WORD) if isinstance(each.type, ir.PointerType) else each)
        kind = ir.FunctionType(ir.VoidType(), [WORD] * len(values))
        builder.call(cgutils.get_or_insert_function(builder.module, kind, f"soft_{name}"), values)

    def emit_pair_product(_builder: Any, total: Any, _factor: Any, _vector: Any) -> Any:
        return total  # what has tiles multiplies in them

    def emit_halves(builder: Any, numbers: Any) -> Any:
        bits = builder.bitcast(numbers, lanes.INT_VECTOR)

        def splat(number: int) -> Any:
            return ir.Constant(lanes.INT_VECTOR, [number] * lanes.LANES)

        last = builder.and_(builder.lshr(bits, splat(16)), splat(1))
        rounded = builder.lshr(builder.add(bits, builder.add(last, splat(0x7FFF))), splat(16))
        is_small = builder.icmp_unsigned("<", builder.and_(bits, splat(0x7FFFFFFF)), splat(0x00800000))
        return builder.trunc(builder.select(is_small, splat(0), rounded), lanes.HALF_VECTOR)

    halves.emit_pair_product, halves.emit_halves = emit_pair_product, emit_halves
    # Those of bytes need VNNI beside: they stay as they are.
    from decoding.kernels.cpu.products import tiles
    from decoding.kernels.cpu.products.grouped import multiplying  # noqa: F401

    has_feature = processor.has_feature
    processor.has_feature = lambda name: name in FEATURES or has_feature(name)
    processor.multiplies_in_tiles = lambda: True
    tiles.HAS_TILES, tiles._FEWEST, tiles.emit_tile = True, sys.maxsize, emit_tile


if __name__ == "__main__":
    if IS_INNER in os.environ:
        install()
        sys.exit(pytest.main(sys.argv[1:]))
    with tempfile.TemporaryDirectory() as folder:  # for kernels that no other process is to load
        variables = os.environ | {VARIABLE: folder, IS_INNER: "1"}
        command = [sys.executable, "-m", "tests.soft_tiles", *sys.argv[1:]]
        sys.exit(subprocess.run(command, env=variables, check=False).returncode)
