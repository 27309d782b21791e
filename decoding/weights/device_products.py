"""Products on a GPU by kernels of our own, whose bits for a row depend on the row alone.

Invariant: sizes depend on a layer's shape, its dtype and the device, and never on the number of rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from decoding.kernels.gpu.card import num_processors
from decoding.kernels.gpu.products import Operands, add_parts, multiply
from decoding.kernels.gpu.toolchain import NO_FUSION
from decoding.kernels.layout import HALF_TILE

# Shape suffixes: M rows, I input width, O output width, P parts.
FEW_ROWS = 64  # up to so many rows parts are computed side by side, since all programs together wait for weights
PROGRAMS_EACH = 2  # for each of the device's multiprocessors, that read weights
INTERPRETED_PROCESSORS = 4
LEAST_PART, MOST_PARTS = 512, 16  # inputs of a part; parts of a layer
ADDED = 512  # numbers that one program adds up


class ProductTile(NamedTuple):
    """outputs, tokens and inputs of a product."""

    outputs: int
    tokens: int
    inputs: int
    num_warps: int
    num_stages: int


HALVES = ProductTile(64, 64, 64, 4, 4)
FLOATS = ProductTile(32, 32, 32, 4, 2)  # which no tensor core multiplies exactly
PACKED_FLOATS = FLOATS._replace(inputs=2 * HALF_TILE)


def product_tile(dtype: torch.dtype, is_packed: bool = False) -> ProductTile:
    """dtype: of the tokens."""
    if dtype.itemsize <= 2:
        return HALVES
    return PACKED_FLOATS if is_packed else FLOATS


def linear(input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """`F.linear`; argument names are torch's. weight: [O, I], in any order in memory."""
    plain = packing_of(0, weight.shape[1], 0)
    operands = Operands(weight, weight, weight, weight, *weight.stride())
    return _product(input, operands, bias, product_tile(weight.dtype), (weight.shape[0], weight.shape[1]), plain)


def multiply_codes(
    input: torch.Tensor,
    tensors: Sequence[torch.Tensor],
    bias_O: torch.Tensor | None,
    shape: tuple[int, int],
    packing: dict[str, int],
) -> torch.Tensor:
    """The same for packed codes. tensors: as `CodeTensors` has them. packing: as by `packing_of`."""
    codes, scales, minima, factors = tensors
    operands = Operands(codes, scales, minima, factors, codes.stride(0), 1)
    return _product(input, operands, bias_O, product_tile(input.dtype, is_packed=True), shape, packing)


def _product(
    input: torch.Tensor,
    operands: Operands,
    bias_O: torch.Tensor | None,
    tile: ProductTile,
    shape: tuple[int, int],
    packing: dict[str, int],
) -> torch.Tensor:
    num_outputs, width = shape
    rows_MI = input.reshape(-1, width).contiguous()
    num_rows = len(rows_MI)
    out_MO = rows_MI.new_empty(num_rows, num_outputs)
    parts = parts_of(num_outputs, width, tile, num_processors(input.device) or INTERPRETED_PROCESSORS)
    is_whole = num_rows > FEW_ROWS or parts == 1
    sums_PMO = out_MO if is_whole else rows_MI.new_empty(parts, num_rows, num_outputs, dtype=torch.float32)
    num_tiles = -(-num_rows // tile.tokens) * -(-num_outputs // tile.outputs)
    options = {"OUTPUTS": num_outputs, "PARTS": parts, "HAS_BIAS": bias_O is not None}
    some_bias = rows_MI if bias_O is None else bias_O
    with torch.cuda.device(input.get_device()):  # where Triton launches; -1, a CPU's, changes nothing
        multiply[(num_tiles, 1 if is_whole else parts)](
            rows_MI, operands, some_bias, sums_PMO, num_rows,
            **constants_of(width, is_whole, tile), **options, **packing,
        )  # fmt: skip
        if not is_whole:
            count = num_rows * num_outputs
            add_parts[(-(-count // ADDED),)](sums_PMO, some_bias, out_MO, count, N=ADDED, **options, **NO_FUSION)
    return out_MO.view(*input.shape[:-1], num_outputs)


def packing_of(bits: int, group: int, zero: int) -> dict[str, int]:
    """Of `multiply`."""
    return {"BITS": bits, "GROUP": group, "ZERO": zero}


def constants_of(width: int, is_whole: bool, tile: ProductTile) -> dict[str, Any]:
    """Of `multiply`, with Triton's options."""
    sizes = {"TILE_OUTPUTS": tile.outputs, "TILE_ROWS": tile.tokens, "TILE_INPUTS": tile.inputs}
    sizes |= {"WIDTH": width, "IS_WHOLE": is_whole}
    return sizes | {"num_warps": tile.num_warps, "num_stages": tile.num_stages} | NO_FUSION


def parts_of(num_outputs: int, width: int, tile: ProductTile, num_processors: int) -> int:
    """Into how many parts a layer's input is cut, so that all of the device reads its weights."""
    wanted = round(PROGRAMS_EACH * num_processors / -(-num_outputs // tile.outputs))
    return max(1, min(wanted, width // LEAST_PART, MOST_PARTS))
