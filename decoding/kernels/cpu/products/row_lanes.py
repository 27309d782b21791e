"""Multiplies rows of float32 with a matrix that lies as it came: sixteen rows at a time, each in a lane.

Invariant: a row's sums run over the input in order, whatever the other rows are.
"""

from __future__ import annotations

import numba as nb
import numpy as np
from numpy.typing import NDArray

from decoding.kernels.cpu import lanes
from decoding.kernels.cpu.lanes import IN_FLIGHT, LANES, VECTOR_BYTES
from decoding.kernels.numba_kernel import kernel

# Shape suffixes: M rows, I input width, O output width.
Floats = NDArray[np.float32]


@kernel
def _transpose(rows_MI: Floats, tile: int) -> Floats:
    """[I * LANES]: sixteen rows interleaved, one in each lane, with zeros after the last row."""
    width = rows_MI.shape[1]
    columns = np.zeros(width * LANES, np.float32)
    for lane in range(min(LANES, len(rows_MI) - tile * LANES)):
        for place in range(width):
            columns[place * LANES + lane] = rows_MI[tile * LANES + lane, place]
    return columns


@kernel
def _multiply_block(columns: Floats, weight_OI: Floats, out_MO: Floats, tile: int, block: int) -> None:
    """Multiply one tile of sixteen rows by up to sixteen outputs' weights."""
    width = weight_OI.shape[1]
    first = block * IN_FLIGHT
    count = min(IN_FLIGHT, len(weight_OI) - first)
    sums = np.empty(IN_FLIGHT * LANES, np.float32)
    query, total = np.int64(columns.ctypes.data), np.int64(sums.ctypes.data)
    weights, step = np.int64(weight_OI.ctypes.data) + first * width * 4, 4 * width
    if count == IN_FLIGHT:
        lanes.score_keys(query, weights, step, width, 1.0, total)
    else:
        for output in range(count):
            lanes.score_key(query, weights + output * step, step, width, 1.0, total + output * VECTOR_BYTES)
    for lane in range(min(LANES, len(out_MO) - tile * LANES)):
        for output in range(count):
            out_MO[tile * LANES + lane, first + output] = sums[output * LANES + lane]


@kernel
def multiply_serial(rows_MI: Floats, weight_OI: Floats, out_MO: Floats) -> None:
    num_blocks = (len(weight_OI) + IN_FLIGHT - 1) // IN_FLIGHT
    for tile in range((len(rows_MI) + LANES - 1) // LANES):
        columns = _transpose(rows_MI, tile)
        for block in range(num_blocks):
            _multiply_block(columns, weight_OI, out_MO, tile, block)


@nb.njit(cache=True, parallel=True)
def multiply_parallel(rows_MI: Floats, weight_OI: Floats, out_MO: Floats) -> None:
    num_blocks = (len(weight_OI) + IN_FLIGHT - 1) // IN_FLIGHT
    for tile in range((len(rows_MI) + LANES - 1) // LANES):
        columns = _transpose(rows_MI, tile)
        for block in nb.prange(num_blocks):
            _multiply_block(columns, weight_OI, out_MO, tile, block)
