"""Mixtures of experts in Triton: each chosen expert's weights are multiplied by all rows that chose it.

A pair is a row and one of its experts; pairs are sorted by expert and cut into tiles, each of one expert's pairs. Tiles
are counted on the device: there are as many programs as the worst case needs, and those without pairs end at once.
Weights may be packed, see `DeviceCodes`.
Invariant: a row's sums run in the same order, in products of the same size, whatever other rows there are.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import triton
import triton.language as tl

from decoding.kernels.gpu.products import multiply_part

# Shape suffixes: T tiles, P pairs, M rows, K experts of a row, X experts, padded; O outputs and N pairs of a tile, or N
# numbers of a row.


@triton.jit
def lay_tiles(firsts, tiles, EXPERTS: tl.constexpr, TILE_ROWS: tl.constexpr, EXPERTS_PADDED: tl.constexpr):
    """Grid: T. firsts: [EXPERTS + 1], of each expert's pairs. tiles: [T, 3], written: the expert, its first pair and
    the one after its last; of tiles that are not needed no pairs."""
    tile, expert_X = tl.program_id(0), tl.arange(0, EXPERTS_PADDED)
    is_expert_X = expert_X < EXPERTS
    first_X = tl.load(firsts + expert_X, mask=is_expert_X, other=0)
    end_X = tl.load(firsts + expert_X + 1, mask=is_expert_X, other=0)
    num_tiles_X = (end_X - first_X + TILE_ROWS - 1) // TILE_ROWS
    number_X = tile - (tl.cumsum(num_tiles_X, 0) - num_tiles_X)  # of the tile among the expert's
    is_own_X = (number_X >= 0) & (number_X < num_tiles_X)
    own_first_X = first_X + number_X * TILE_ROWS
    tl.store(tiles + 3 * tile, tl.sum(tl.where(is_own_X, expert_X, 0), 0))
    tl.store(tiles + 3 * tile + 1, tl.sum(tl.where(is_own_X, own_first_X, 0), 0))
    tl.store(tiles + 3 * tile + 2, tl.sum(tl.where(is_own_X, tl.minimum(own_first_X + TILE_ROWS, end_X), 0), 0))


@triton.jit
def multiply_chosen(
    rows,  # [M, WIDTH], side by side
    operands,  # `Operands` of experts
    bias,  # [EXPERTS, OUTPUTS]
    out,  # [P, OUTPUTS]
    pairs,  # [P], sorted by expert
    tiles,  # [T, 3]
    expert_step,  # of the weights
    RANKS: tl.constexpr,
    WIDTH: tl.constexpr,
    OUTPUTS: tl.constexpr,
    BITS: tl.constexpr,
    GROUP: tl.constexpr,
    ZERO: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    TILE_OUTPUTS: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    TILE_INPUTS: tl.constexpr,
):
    """Grid: (T, tiles of outputs). RANKS: pairs of a row. BITS: as `multiply` has them."""
    tile = tl.program_id(0)
    expert, first, end = tl.load(tiles + 3 * tile), tl.load(tiles + 3 * tile + 1), tl.load(tiles + 3 * tile + 2)
    if first >= end:
        return
    output_O = tl.program_id(1) * TILE_OUTPUTS + tl.arange(0, TILE_OUTPUTS)
    place_N = first + tl.arange(0, TILE_ROWS)
    is_output_O, is_pair_N = output_O < OUTPUTS, place_N < end
    known_O = tl.where(is_output_O, output_O, 0)
    pair_N = tl.load(pairs + tl.where(is_pair_N, place_N, first))
    weight_O = operands.weight + expert.to(tl.int64) * expert_step + known_O.to(tl.int64) * operands.output_step
    own_O = expert * OUTPUTS + known_O
    sum_ON = multiply_part(
        rows, pair_N // RANKS, operands, weight_O, own_O, 0, WIDTH,
        WIDTH, BITS, GROUP, ZERO, TILE_OUTPUTS, TILE_ROWS, TILE_INPUTS,
    )  # fmt: skip
    if HAS_BIAS:
        sum_ON += tl.load(bias + own_O).to(tl.float32)[:, None]
    place_ON = pair_N.to(tl.int64)[None, :] * OUTPUTS + output_O[:, None]
    tl.store(out + place_ON, sum_ON.to(out.dtype.element_ty), mask=is_output_O[:, None] & is_pair_N[None, :])


@triton.jit
def add_chosen(
    results,  # [M, RANKS, WIDTH]
    chosen,  # [M, RANKS]; EXPERTS and more mean none
    shares,  # [M, RANKS]
    out,  # [M, WIDTH]
    RANKS: tl.constexpr,
    EXPERTS: tl.constexpr,
    WIDTH: tl.constexpr,
    RANKS_PADDED: tl.constexpr,
    N: tl.constexpr,
):
    """Adds up a row's results times their shares, in the order of the experts' numbers. Grid: (M, numbers / N)."""
    first_pair, rank_K = tl.program_id(0).to(tl.int64) * RANKS, tl.arange(0, RANKS_PADDED)
    column_N = tl.program_id(1) * N + tl.arange(0, N)
    expert_K = tl.load(chosen + first_pair + rank_K, mask=rank_K < RANKS, other=EXPERTS)
    is_same_KK = (expert_K[None, :] == expert_K[:, None]) & (rank_K[None, :] < rank_K[:, None])
    place_K = tl.sum(((expert_K[None, :] < expert_K[:, None]) | is_same_KK).to(tl.int32), 1)
    total_N = tl.zeros([N], tl.float32)
    for place in tl.static_range(RANKS):
        pair = first_pair + tl.sum(tl.where(place_K == place, rank_K, 0), 0)
        is_chosen = tl.sum(tl.where(place_K == place, expert_K, 0), 0) < EXPERTS
        share = tl.load(shares + pair).to(tl.float32)
        num_there = tl.where(is_chosen, WIDTH, 0)  # what none has computed may be no number
        result_N = tl.load(results + pair * WIDTH + column_N, mask=column_N < num_there, other=0.0).to(tl.float32)
        total_N += tl.where(is_chosen, result_N * share, 0.0)
    tl.store(out + tl.program_id(0).to(tl.int64) * WIDTH + column_N, total_N.to(out.dtype.element_ty), column_N < WIDTH)
