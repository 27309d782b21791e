"""Linear layers and means in Triton, whose result for a token does not depend on how many tokens there are.

`multiply` computes a tile of outputs by tokens, always of the same size: weights are the left operand, as they are what
a step of few tokens waits for. A layer's input is cut into as many parts as its shape says. With few tokens a program
computes one part of a tile, and `add_parts` adds them up; with many it computes them one after the other and adds them
itself, in the same order. Partial sums are float32. Weights may be packed, see `DeviceCodes`: they are unpacked to the
tokens' dtype just before they are multiplied.
Invariant: a token's sums run in the same order, in products of the same size, whatever other tokens there are.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from decoding.kernels.layout import HALF_TILE

# Shape suffixes: O outputs, N tokens and I inputs of a tile; W inputs of one product, half a tile's of packed weights.
HALF = tl.constexpr(HALF_TILE)


class Operands(NamedTuple):
    """A layer's weights. Where they are not packed only the first tensor and the steps are read.

    weight: [O, I] in any order in memory; packed, bytes. scales, minima: float16 [O, groups]. factors: float32 [O]. Of
    experts, all of them have one more dimension in front. output_step, input_step: of `weight`.
    """

    weight: torch.Tensor
    scales: torch.Tensor
    minima: torch.Tensor
    factors: torch.Tensor
    output_step: int
    input_step: int


@triton.jit
def _rows(rows, known_N, input_W, WIDTH: tl.constexpr, IS_EVEN: tl.constexpr):
    """Some inputs of a tile's tokens; zeros beyond the width."""
    place_WN = known_N.to(tl.int64)[None, :] * WIDTH + input_W[:, None]
    if IS_EVEN:
        return tl.load(rows + place_WN)
    return tl.load(rows + place_WN, mask=(input_W < WIDTH)[:, None], other=0.0)


@triton.jit
def _of_groups(numbers, known_O, first, GROUP: tl.constexpr, NUM_GROUPS: tl.constexpr):
    """The scales, or minima, of half a tile's inputs from `first` on: [O, 1], or [O, W] where they have two groups."""
    place_O = known_O.to(tl.int64) * NUM_GROUPS
    group = first // GROUP
    own_O = tl.load(numbers + place_O + tl.minimum(group, NUM_GROUPS - 1)).to(tl.float32)
    own_OW = own_O[:, None]
    if GROUP < HALF:
        next_O = tl.load(numbers + place_O + tl.minimum(group + 1, NUM_GROUPS - 1)).to(tl.float32)
        own_OW = tl.where((tl.arange(0, HALF) < GROUP)[None, :], own_OW, next_O[:, None])
    return own_OW


@triton.jit
def multiply_part(
    rows,
    known_N,
    operands,
    weight_O,
    known_O,
    first_input,
    end_input,
    WIDTH: tl.constexpr,
    BITS: tl.constexpr,
    GROUP: tl.constexpr,
    ZERO: tl.constexpr,
    TILE_OUTPUTS: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    TILE_INPUTS: tl.constexpr,
):
    """[O, N]: the products of some inputs, added up. known_N: rows; weight_O: where outputs' weights begin; known_O:
    outputs, as scales, minima and factors count them."""
    IS_EVEN: tl.constexpr = WIDTH % TILE_INPUTS == 0
    NUM_GROUPS: tl.constexpr = (WIDTH + GROUP - 1) // GROUP
    if BITS:
        factor_O1 = tl.load(operands.factors + known_O)[:, None]
    sum_ON = tl.zeros([TILE_OUTPUTS, TILE_ROWS], tl.float32)
    for start in range(first_input, end_input, TILE_INPUTS):
        if BITS == 0:
            input_I = start + tl.arange(0, TILE_INPUTS)
            places_OI = weight_O[:, None] + (input_I * operands.input_step)[None, :]
            weight_OI = tl.load(places_OI) if IS_EVEN else tl.load(places_OI, (input_I < WIDTH)[None, :], other=0.0)
            rows_IN = _rows(rows, known_N, input_I, WIDTH, IS_EVEN)
            sum_ON = tl.dot(weight_OI, rows_IN, sum_ON, input_precision="ieee")
        else:
            if BITS == 4:
                both_OW = tl.load(weight_O[:, None] + (start // 2 + tl.arange(0, HALF))[None, :])
            for half in tl.static_range(TILE_INPUTS // HALF):
                first = start + half * HALF
                input_W = first + tl.arange(0, HALF)
                places_OW = weight_O[:, None] + input_W[None, :]
                code_OW = (both_OW >> (4 * half)) & 15 if BITS == 4 else tl.load(places_OW)
                scale_OW = _of_groups(operands.scales, known_O, first, GROUP, NUM_GROUPS)
                if ZERO < 0:
                    minimum_OW = _of_groups(operands.minima, known_O, first, GROUP, NUM_GROUPS)
                    weight_OW = code_OW.to(tl.float32) * scale_OW - minimum_OW
                else:
                    weight_OW = (code_OW.to(tl.float32) - ZERO) * scale_OW
                weight_OW = (weight_OW * factor_O1).to(rows.dtype.element_ty)
                rows_WN = _rows(rows, known_N, input_W, WIDTH, IS_EVEN)
                sum_ON = tl.dot(weight_OW, rows_WN, sum_ON, input_precision="ieee")
    return sum_ON


@triton.jit(do_not_specialize=["num_rows"])
def multiply(
    rows,  # [M, WIDTH], side by side
    operands,
    bias,  # [OUTPUTS]
    out,  # [M, OUTPUTS]; of parts, float32 [PARTS, M, OUTPUTS]
    num_rows,
    WIDTH: tl.constexpr,
    OUTPUTS: tl.constexpr,
    PARTS: tl.constexpr,
    BITS: tl.constexpr,
    GROUP: tl.constexpr,
    ZERO: tl.constexpr,
    IS_WHOLE: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    TILE_OUTPUTS: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    TILE_INPUTS: tl.constexpr,
):
    """Grid: (tiles, parts; 1 where programs compute all parts). IS_WHOLE: they do. BITS: of a packed code; 0 of weights
    that are not packed."""
    num_tiles = tl.cdiv(num_rows, TILE_ROWS)
    tile, number = tl.program_id(0) % num_tiles, tl.program_id(0) // num_tiles  # a tile's weights are read side by side
    output_O = number * TILE_OUTPUTS + tl.arange(0, TILE_OUTPUTS)
    row_N = tile * TILE_ROWS + tl.arange(0, TILE_ROWS)
    is_output_O, is_row_N = output_O < OUTPUTS, row_N < num_rows
    known_O, known_N = tl.where(is_output_O, output_O, 0), tl.where(is_row_N, row_N, 0)
    PART_LEN: tl.constexpr = (WIDTH + PARTS * TILE_INPUTS - 1) // (PARTS * TILE_INPUTS) * TILE_INPUTS
    weight_O = operands.weight + known_O.to(tl.int64) * operands.output_step
    part = tl.program_id(1)
    total_ON = tl.zeros([TILE_OUTPUTS, TILE_ROWS], tl.float32)
    for each in range(0 if IS_WHOLE else part, PARTS if IS_WHOLE else part + 1):
        sum_ON = multiply_part(
            rows, known_N, operands, weight_O, known_O, each * PART_LEN, min((each + 1) * PART_LEN, WIDTH),
            WIDTH, BITS, GROUP, ZERO, TILE_OUTPUTS, TILE_ROWS, TILE_INPUTS,
        )  # fmt: skip
        total_ON += sum_ON
    if IS_WHOLE and HAS_BIAS:
        total_ON += tl.load(bias + known_O).to(tl.float32)[:, None]
    first_out = out if IS_WHOLE else out + part.to(tl.int64) * num_rows * OUTPUTS
    place_ON = row_N.to(tl.int64)[None, :] * OUTPUTS + output_O[:, None]
    tl.store(first_out + place_ON, total_ON.to(out.dtype.element_ty), mask=is_output_O[:, None] & is_row_N[None, :])


@triton.jit(do_not_specialize=["num_numbers"])
def add_parts(
    sums, bias, out, num_numbers, OUTPUTS: tl.constexpr, PARTS: tl.constexpr, HAS_BIAS: tl.constexpr, N: tl.constexpr
):
    """Grid: numbers of the result / N. sums: float32 [PARTS, numbers]."""
    place_N = tl.program_id(0) * N + tl.arange(0, N)
    is_number_N = place_N < num_numbers
    total_N = tl.zeros([N], tl.float32)
    for part in tl.static_range(PARTS):
        total_N += tl.load(sums + part * num_numbers.to(tl.int64) + place_N, mask=is_number_N, other=0.0)
    if HAS_BIAS:
        total_N += tl.load(bias + place_N % OUTPUTS).to(tl.float32)
    tl.store(out + place_N, total_N.to(out.dtype.element_ty), mask=is_number_N)


@triton.jit
def mean(rows, out, WIDTH: tl.constexpr, N: tl.constexpr):
    """The mean of each row. Grid: rows, which lie side by side. N: WIDTH, padded to a power of two."""
    row, column_N = tl.program_id(0).to(tl.int64), tl.arange(0, N)
    row_N = tl.load(rows + row * WIDTH + column_N, mask=column_N < WIDTH, other=0.0).to(tl.float32)
    tl.store(out + row, (tl.sum(row_N, 0) / WIDTH).to(out.dtype.element_ty))
