"""Tree attention over the block pool, in Triton: tiles of (row, head) pairs by ranges of keys, for any mixture of
prompts, roots and trees.

`kv_rows.store_rows` first writes the step's keys and values to their slots, since other segments of the step may read
them; `attend_tiles` computes the items of a work list; `merge.merge_ranges` adds a row's ranges. A row is a token.
Softmax is in base 2. All that changes from step to step is read on the device, so grids depend only on the padded
number of rows.
Invariant: a row's keys are added up in order of their positions, in blocks that begin at the same positions whatever is
beside it, each by the same operations: what is fused is written so, and the compiler fuses nothing. So it has the same
bits in a tree, in a chain, and in any batch.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from decoding.kernels.gpu import work_list
from decoding.kernels.gpu.kv_rows import SLOTS
from decoding.kernels.gpu.merge import fold

# Shape suffixes: M pairs of a tile (the query heads of a row that share a kv head lie side by side), N keys of a block,
# D key width and V value width, both padded to powers of two, I words of an item.
ITEM = tl.constexpr(work_list.ITEM_WORDS)
FIRST_ROW, NUM_ROWS = tl.constexpr(work_list.FIRST_ROW), tl.constexpr(work_list.NUM_ROWS)
FIRST_PAIR, FIRST_POSITION = tl.constexpr(work_list.FIRST_PAIR), tl.constexpr(work_list.FIRST_POSITION)
TABLE, START, END = tl.constexpr(work_list.TABLE), tl.constexpr(work_list.START), tl.constexpr(work_list.END)
PARTIAL, PARTIALS_EACH = tl.constexpr(work_list.PARTIAL), tl.constexpr(work_list.PARTIALS_EACH)
IS_FIRST, PATH = tl.constexpr(work_list.IS_FIRST), tl.constexpr(work_list.PATH)
BASE, LENGTH = tl.constexpr(work_list.BASE), tl.constexpr(work_list.LENGTH)
LOG2_E = tl.constexpr(1.4426950408889634)
NEVER = tl.constexpr(float("-inf"))


class Step(NamedTuple):
    """The tensors of a step that attention reads, int32, as in `StepTensors`."""

    positions: torch.Tensor
    blocks: torch.Tensor
    work: torch.Tensor


class Results(NamedTuple):
    """out: [T, H, V]. sums: float32 [partial sums, H, V]. stats: float32 [partial sums, H, 2], the largest score and
    the sum of weights."""

    out: torch.Tensor
    sums: torch.Tensor
    stats: torch.Tensor


@triton.jit(do_not_specialize=["num_blocks"])
def attend_tiles(
    query,  # [H, T, D]
    keys,  # [B, K, D, 16], of the model's dtype or fp8
    values,  # [B, K, 16, V]
    sinks,  # [H]
    results,  # `Results`
    step,  # a `Step`
    num_blocks,  # of all tables
    query_head,
    query_row,
    scaling,  # times log2(e), where no soft-cap comes between
    LIST: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    KEY_WIDTH: tl.constexpr,
    VALUE_WIDTH: tl.constexpr,
    WINDOW: tl.constexpr,
    CHUNK: tl.constexpr,
    SOFTCAP: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    HAS_MANY: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
):
    """Grid: as many programs as the device runs at once. They divide the items of a list, for each kv head, and read an
    item's words while they compute the one before. HAS_MANY: they are of long chains, and no keys are listed."""
    items, last = step.work + tl.load(step.work + 2 * LIST + 1), tl.load(step.work + 2 * LIST) * NUM_KV_HEADS - 1
    following_I = _item_of(items, 0, last, NUM_KV_HEADS)
    for turn in range(0, tl.cdiv(last + 1, tl.num_programs(0))):
        number, item_I = _number_of(turn), following_I
        following_I = _item_of(items, turn + 1, last, NUM_KV_HEADS)
        if number <= last:
            head = number % NUM_KV_HEADS
            at_M, is_row_M, head_M, position_M = _pairs_of(item_I, head, step, GROUP, HAS_MANY, M)
            query_MD = _rows_at(query, at_M * query_row + head_M * query_head, is_row_M, KEY_DIM, KEY_WIDTH)
            top_M, total_M, sum_MV = _before_any(item_I, sinks, head_M, HAS_SINKS, M, VALUE_WIDTH)
            start, border, end = _span_of(item_I, WINDOW, CHUNK, HAS_MANY, N)
            top_M, total_M, sum_MV = _add_keys(
                top_M, total_M, sum_MV, query_MD, position_M, item_I, head, keys, values, step, num_blocks, scaling,
                start, border, NUM_KV_HEADS, KEY_DIM, VALUE_DIM, WINDOW, CHUNK, SOFTCAP, not HAS_MANY, False, N,
            )  # fmt: skip
            top_M, total_M, sum_MV = _add_keys(
                top_M, total_M, sum_MV, query_MD, position_M, item_I, head, keys, values, step, num_blocks, scaling,
                border, end, NUM_KV_HEADS, KEY_DIM, VALUE_DIM, WINDOW, CHUNK, SOFTCAP, True, not HAS_MANY, N,
            )  # fmt: skip
            again_I = tl.load(items + number // NUM_KV_HEADS * ITEM + tl.arange(0, ITEM))  # not kept in registers
            at_M, is_row_M, head_M, _ = _pairs_of(again_I, head, step, GROUP, HAS_MANY, M)
            _write(top_M, total_M, sum_MV, again_I, at_M, is_row_M, head_M, results, NUM_KV_HEADS * GROUP, VALUE_DIM)


@triton.jit
def _number_of(turn):
    """Of a program's next item. Turns run to and fro, since the keys of a prompt's tiles are ever more."""
    program, num_programs = tl.program_id(0), tl.num_programs(0)
    return turn * num_programs + tl.where(turn % 2 == 0, program, num_programs - 1 - program)


@triton.jit
def _item_of(items, turn, last, NUM_KV_HEADS: tl.constexpr):
    """The words of an item, by one load; of the last one beyond it."""
    word_I = tl.arange(0, ITEM)
    number = tl.minimum(_number_of(turn), last) // NUM_KV_HEADS
    return tl.load(items + number * ITEM + word_I, mask=word_I < (last + 1) * ITEM, other=0)


@triton.jit
def _word(item_I, PLACE: tl.constexpr):
    return tl.sum(tl.where(tl.arange(0, ITEM) == PLACE, item_I, 0), 0)


@triton.jit
def _pairs_of(item_I, head, step, GROUP: tl.constexpr, HAS_MANY: tl.constexpr, M: tl.constexpr):
    """Of each pair of a tile: its row in the step, whether there is one, its query head, and its position."""
    pair_M = _word(item_I, FIRST_PAIR) + tl.arange(0, M)
    place_M, head_M = pair_M // GROUP, head * GROUP + pair_M % GROUP
    num_rows, path = _word(item_I, NUM_ROWS), _word(item_I, PATH)
    is_row_M = place_M < num_rows
    if not HAS_MANY:
        listed_M = tl.load(step.work + path + 2 + place_M, mask=place_M < tl.where(path >= 0, num_rows, 0), other=0)
        place_M = tl.where(path >= 0, listed_M, place_M)
    at_M = _word(item_I, FIRST_ROW) + place_M
    return at_M, is_row_M, head_M, tl.load(step.positions + at_M, mask=is_row_M, other=-1)


@triton.jit
def _rows_at(rows, place_M, is_row_M, WIDTH: tl.constexpr, PADDED: tl.constexpr):
    column_D = tl.arange(0, PADDED)
    is_number_MD = is_row_M[:, None] & (column_D < WIDTH)[None, :]
    return tl.load(rows + place_M[:, None] + column_D[None, :], mask=is_number_MD, other=0.0)


@triton.jit
def _span_of(item_I, WINDOW: tl.constexpr, CHUNK: tl.constexpr, HAS_MANY: tl.constexpr, N: tl.constexpr):
    """A tile's first key, the last one + 1, and between both where those begin that are listed, or not seen by all."""
    first, end = _word(item_I, FIRST_POSITION), _word(item_I, END)
    start = tl.maximum(_word(item_I, START), _lowest(first, WINDOW, CHUNK) // N * N)
    if HAS_MANY:
        return start, tl.maximum(start, tl.minimum(end, first + 1) // N * N), end
    return start, tl.where(_word(item_I, PATH) < 0, end, start), end


@triton.jit
def _lowest(position, WINDOW: tl.constexpr, CHUNK: tl.constexpr):
    """The first position that one sees."""
    lowest = position * 0
    if WINDOW:
        lowest = tl.maximum(lowest, position - WINDOW + 1)
    if CHUNK:
        lowest = tl.maximum(lowest, position // CHUNK * CHUNK)
    return lowest


@triton.jit
def _before_any(item_I, sinks, head_M, HAS_SINKS: tl.constexpr, M: tl.constexpr, VALUE_WIDTH: tl.constexpr):
    """The state before any key. A sink counts as one more, without a value, before the first."""
    top_M = tl.full([M], NEVER, tl.float32)
    total_M = tl.zeros([M], tl.float32)
    if HAS_SINKS:
        is_first = _word(item_I, IS_FIRST) == 1
        top_M = tl.where(is_first, tl.load(sinks + head_M).to(tl.float32) * LOG2_E, top_M)
        total_M = tl.where(is_first, 1.0, total_M)
    return top_M, total_M, tl.zeros([M, VALUE_WIDTH], tl.float32)


@triton.jit
def _blocks_of(table, first_key, end, N: tl.constexpr):
    """The block of each of N positions before `end`."""
    block_N = (first_key + tl.arange(0, N)) // SLOTS
    return tl.load(table + block_N, mask=block_N * SLOTS < end, other=0)


@triton.jit
def _add_keys(
    top_M, total_M, sum_MV, query_MD, position_M, item_I, head, keys, values, step, num_blocks, scaling, begin, end,
    NUM_KV_HEADS: tl.constexpr, KEY_DIM: tl.constexpr, VALUE_DIM: tl.constexpr, WINDOW: tl.constexpr,
    CHUNK: tl.constexpr, SOFTCAP: tl.constexpr, IS_MASKED: tl.constexpr, IS_LISTED: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """Add the keys from `begin` on to a tile's state, N at a time, while those of the next are on their way. IS_MASKED:
    not every row may see all of them. IS_LISTED: some lie where the path's list says, which are read one by one."""
    table = step.blocks + num_blocks + _word(item_I, TABLE)
    base, length, path = _word(item_I, BASE), _word(item_I, LENGTH), _word(item_I, PATH)
    nodes = step.work + path + 2 + _word(item_I, NUM_ROWS) - base
    block_N = _blocks_of(table, begin, end, N)
    for first_key in tl.range(begin, end, N, num_stages=1 if IS_LISTED else None):
        position_N = first_key + tl.arange(0, N)
        if IS_LISTED:
            node_N = tl.load(nodes + position_N, mask=(position_N >= base) & (position_N < end), other=0)
            key_N = tl.where(position_N >= base, length + node_N, position_N)
            own_N, slot_N = tl.load(table + key_N // SLOTS, mask=position_N < end, other=0), key_N % SLOTS
        else:
            own_N, slot_N = block_N, position_N % SLOTS
            block_N = _blocks_of(table, first_key + N, end, N)
        plane_N = own_N.to(tl.int64) * NUM_KV_HEADS + head
        keys_DN, values_NV = _read(
            keys, values, plane_N, slot_N, position_N, end, query_MD.shape[1], sum_MV.shape[1], KEY_DIM, VALUE_DIM,
            IS_MASKED, IS_LISTED,
        )  # fmt: skip
        scores_MN = tl.dot(query_MD, keys_DN.to(query_MD.dtype), input_precision="ieee")
        if SOFTCAP > 0:
            scores_MN = _soft_capped(scores_MN * scaling, SOFTCAP)
        if IS_MASKED:
            scores_MN = tl.where(position_N[None, :] <= position_M[:, None], scores_MN, NEVER)
        if WINDOW or CHUNK:
            lowest_M = _lowest(position_M, WINDOW, CHUNK)
            scores_MN = tl.where(position_N[None, :] >= lowest_M[:, None], scores_MN, NEVER)
        own_top_M, own_total_M, own_sum_MV = _state_of(
            scores_MN, values_NV.to(query_MD.dtype), LOG2_E if SOFTCAP > 0 else scaling
        )
        top_M, total_M, sum_MV = fold(top_M, total_M, sum_MV, own_top_M, own_total_M, own_sum_MV)
    return top_M, total_M, sum_MV


@triton.jit
def _read(
    keys, values, plane_N, slot_N, position_N, end, KEY_WIDTH: tl.constexpr, VALUE_WIDTH: tl.constexpr,
    KEY_DIM: tl.constexpr, VALUE_DIM: tl.constexpr, IS_MASKED: tl.constexpr, IS_LISTED: tl.constexpr,
):  # fmt: skip
    """Keys [D, N] and values [N, V]. Values at positions from `end` on, where slots may hold NaN, are zeros: NaN stays
    when it is multiplied by a weight of zero. Keys may be anything there."""
    column_D, column_V = tl.arange(0, KEY_WIDTH), tl.arange(0, VALUE_WIDTH)
    place_DN = (plane_N * (KEY_DIM * SLOTS) + slot_N)[None, :] + (column_D * SLOTS)[:, None]
    is_key_DN = (position_N < end)[None, :]
    if not IS_LISTED:  # a block's keys lie side by side, and are read as far as the block goes
        place_DN = tl.max_contiguous(tl.multiple_of(place_DN, [1, SLOTS]), [1, SLOTS])
        is_key_DN = tl.max_constancy((position_N // SLOTS * SLOTS < end)[None, :], [1, SLOTS])
    place_NV = ((plane_N * SLOTS + slot_N) * VALUE_DIM)[:, None] + column_V[None, :]
    is_value_NV = (position_N < end)[:, None]
    if KEY_DIM < KEY_WIDTH:
        is_key_DN = is_key_DN & (column_D < KEY_DIM)[:, None]
    if VALUE_DIM < VALUE_WIDTH:
        is_value_NV = is_value_NV & (column_V < VALUE_DIM)[None, :]
    if IS_MASKED or KEY_DIM < KEY_WIDTH:
        keys_DN = tl.load(keys + place_DN, mask=is_key_DN, other=0.0)
    else:
        keys_DN = tl.load(keys + place_DN)
    if IS_MASKED or VALUE_DIM < VALUE_WIDTH:
        values_NV = tl.load(values + place_NV, mask=is_value_NV, other=0.0)
    else:
        values_NV = tl.load(values + place_NV)
    return keys_DN, values_NV


@triton.jit
def _soft_capped(scores_MN, SOFTCAP: tl.constexpr):
    """SOFTCAP * tanh(scores / SOFTCAP), by an exponential that cannot overflow."""
    small_MN = tl.exp2(tl.abs(scores_MN) * (-2 * LOG2_E / SOFTCAP))
    capped_MN = SOFTCAP * (1 - small_MN) / (1 + small_MN)
    return tl.where(scores_MN < 0, -capped_MN, capped_MN)


@triton.jit
def _state_of(scores_MN, values_NV, factor):
    """The state of a block of keys alone: each pair's largest score, sum of weights, and weighted sum of values."""
    top_M = tl.max(scores_MN, 1) * factor
    safe_M = tl.where(top_M == NEVER, 0.0, top_M)
    weights_MN = tl.exp2(tl.fma(scores_MN, tl.full(scores_MN.shape, factor, tl.float32), -safe_M[:, None]))
    sum_MV = tl.dot(weights_MN.to(values_NV.dtype), values_NV, input_precision="ieee")
    return top_M, tl.sum(weights_MN, 1), sum_MV


@triton.jit
def _write(
    top_M, total_M, sum_MV, item_I, at_M, is_row_M, head_M, results, NUM_HEADS: tl.constexpr, VALUE_DIM: tl.constexpr
):
    """A row's result, or the partial sum of these keys."""
    column_V = tl.arange(0, sum_MV.shape[1])
    is_value_MV = is_row_M[:, None] & (column_V < VALUE_DIM)[None, :]
    each = _word(item_I, PARTIALS_EACH)
    if each == 1:
        mean_MV = sum_MV / tl.where(total_M > 0, total_M, 1.0)[:, None]
        out_at_MV = (at_M * NUM_HEADS + head_M)[:, None] * VALUE_DIM + column_V[None, :]
        tl.store(results.out + out_at_MV, mean_MV.to(results.out.dtype.element_ty), mask=is_value_MV)
    else:
        place_M = at_M - _word(item_I, FIRST_ROW)
        partial_M = ((_word(item_I, PARTIAL) + place_M * each) * NUM_HEADS + head_M).to(tl.int64)
        tl.store(results.stats + 2 * partial_M, top_M, mask=is_row_M)
        tl.store(results.stats + 2 * partial_M + 1, total_M, mask=is_row_M)
        tl.store(results.sums + partial_M[:, None] * VALUE_DIM + column_V[None, :], sum_MV, mask=is_value_MV)
