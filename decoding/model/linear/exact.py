"""Makes what is no module in mixtures of experts row-exact on the CPU: linear maps in float32, and sigmoids.

Modelling code calls `F.linear` and `torch.sigmoid`, and the stock kernels' rounding of a row depends on the number of
rows. `REPLACED` is for those calls (see `ReplacedFunctions`); in linear maps each row becomes a lane (see
`attention.lanes`).
Invariant: a row's sums run over the input in order, whatever the other rows are.
"""

from __future__ import annotations

import numba as nb
import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from decoding.attention import lanes
from decoding.attention.lanes import IN_FLIGHT, LANES, VECTOR_BYTES
from decoding.model.rowwise.replaced_functions import Replacements
from decoding.model.rowwise.row_safe import row_safe

# Shape suffixes: M rows, I input width, O output width.
PARALLEL_WORK = 1 << 20  # with fewer multiply-adds (of sixteen rows each), threads cost more than they save
Floats = NDArray[np.float32]


def is_of_columns(weight: torch.Tensor, columns: torch.Tensor) -> bool:
    """Whether a product is a linear map of tokens that lie in columns, as Mamba's modelling code writes it."""
    return weight.dim() == 2 and columns.dim() == 3 and weight.dtype == columns.dtype == torch.float32


def _linear(input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor | None:
    return row_exact_linear(input, weight, bias) if input.dtype == torch.float32 else None


def _matmul(weight: torch.Tensor, columns: torch.Tensor) -> torch.Tensor | None:
    return row_exact_linear(columns.mT, weight).mT if is_of_columns(weight, columns) else None


def row_exact_linear(input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """`F.linear` for float32 on the CPU; argument names are torch's."""
    rows_MI = input.reshape(-1, weight.shape[1]).contiguous()
    out_MO = torch.empty(rows_MI.shape[0], weight.shape[0])
    weight_OI = weight.detach().contiguous().numpy()
    work = -(-len(rows_MI) // LANES) * weight_OI.size
    run = _multiply_parallel if work > PARALLEL_WORK and torch.get_num_threads() > 1 else _multiply_serial
    run(rows_MI.numpy(), weight_OI, out_MO.numpy())
    if bias is not None:
        out_MO += bias
    return out_MO.view(*input.shape[:-1], weight.shape[0])


@nb.njit(cache=True)
def _transpose(rows_MI: Floats, tile: int) -> Floats:
    """[I * LANES]: sixteen rows interleaved, one in each lane, with zeros after the last row."""
    width = rows_MI.shape[1]
    columns = np.zeros(width * LANES, np.float32)
    for lane in range(min(LANES, len(rows_MI) - tile * LANES)):
        for place in range(width):
            columns[place * LANES + lane] = rows_MI[tile * LANES + lane, place]
    return columns


@nb.njit(cache=True)
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


@nb.njit(cache=True)
def _multiply_serial(rows_MI: Floats, weight_OI: Floats, out_MO: Floats) -> None:
    num_blocks = (len(weight_OI) + IN_FLIGHT - 1) // IN_FLIGHT
    for tile in range((len(rows_MI) + LANES - 1) // LANES):
        columns = _transpose(rows_MI, tile)
        for block in range(num_blocks):
            _multiply_block(columns, weight_OI, out_MO, tile, block)


@nb.njit(cache=True, parallel=True)
def _multiply_parallel(rows_MI: Floats, weight_OI: Floats, out_MO: Floats) -> None:
    num_blocks = (len(weight_OI) + IN_FLIGHT - 1) // IN_FLIGHT
    for tile in range((len(rows_MI) + LANES - 1) // LANES):
        columns = _transpose(rows_MI, tile)
        for block in nb.prange(num_blocks):
            _multiply_block(columns, weight_OI, out_MO, tile, block)


REPLACED: Replacements = {
    F.linear: _linear,
    torch.Tensor.matmul: _matmul,
    torch.sigmoid: row_safe(torch.sigmoid),
    torch.Tensor.sigmoid: row_safe(torch.Tensor.sigmoid),  # which F.sigmoid calls
}
