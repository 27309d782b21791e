"""Tree attention over the block pool, in Triton: three launches a layer for any mixture of prompts, roots and trees.

`store_rows` first writes the step's keys and values to their slots, since other segments of the step may read them;
`attend_tiles` computes every tile of (row, head) pairs over one range of positions; `merge_ranges` adds a row's ranges.
A row is a token. Softmax is in base 2. All that changes from step to step is read on the device, so grids depend only
on the padded number of rows.
Invariant: a row's keys are added up in order of their positions, in ranges and blocks that begin at the same positions
whatever is beside it, each by the same operations: what is fused is written so, and the compiler fuses nothing. So it
has the same bits in a tree, in a chain, and in any batch.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from decoding.kernels.gpu.work_list import ITEM_WORDS, MOST_RANGES, OCTAVE, SEGMENT_WORDS, SPLIT
from decoding.kernels.layout import BLOCK_LEN

# Shape suffixes: M pairs of a tile (the query heads of a row that share a kv head lie side by side), N keys of a block,
# D key width and V value width, both padded to powers of two, R ranges that are merged at a time, A all ranges.
SLOTS = tl.constexpr(BLOCK_LEN)
ITEM = tl.constexpr(ITEM_WORDS)
SEGMENT = tl.constexpr(SEGMENT_WORDS)
RANGES = tl.constexpr(MOST_RANGES)
MERGED = tl.constexpr(16)
FIRST_LEN = tl.constexpr(SPLIT)
ALIKE = tl.constexpr(OCTAVE)
LOG2_E = tl.constexpr(1.4426950408889634)
NEVER = tl.constexpr(float("-inf"))
LARGEST_FP8, NO_NUMBER_FP8 = tl.constexpr(0x7E), tl.constexpr(0x7F)
FAR = tl.constexpr(1 << 30)


class Step(NamedTuple):
    """The tensors of a step that attention reads, int32, as in `StepTensors`."""

    first_rows: torch.Tensor
    lengths: torch.Tensor
    table_offsets: torch.Tensor
    positions: torch.Tensor
    blocks: torch.Tensor
    work: torch.Tensor


@triton.jit
def key_places(slot_M, head, column_D, NUM_KV_HEADS: tl.constexpr, KEY_DIM: tl.constexpr):
    """Where a head's keys lie in keys [B, K, D, 16], of tokens by their slots."""
    plane_M = (slot_M // SLOTS).to(tl.int64) * NUM_KV_HEADS + head
    return (plane_M * KEY_DIM * SLOTS + slot_M % SLOTS)[:, None] + column_D[None, :] * SLOTS


@triton.jit
def value_places(slot_M, head, column_V, NUM_KV_HEADS: tl.constexpr, VALUE_DIM: tl.constexpr):
    """The same of values [B, K, 16, V]."""
    plane_M = (slot_M // SLOTS).to(tl.int64) * NUM_KV_HEADS + head
    return ((plane_M * SLOTS + slot_M % SLOTS) * VALUE_DIM)[:, None] + column_V[None, :]


@triton.jit
def _fp8_of(numbers):
    """e4m3, rounded to the nearest, ties to even; what is too large becomes the largest. By integers, so that a GPU has
    the bits that a CPU and an interpreter have."""
    bits = numbers.to(tl.float32).to(tl.int32, bitcast=True)
    size = bits & 0x7FFFFFFF
    usual = ((size + 0x7FFFF + ((size >> 20) & 1)) >> 20) - (120 << 3)
    small = (size.to(tl.float32, bitcast=True) + 16384.0).to(tl.int32, bitcast=True) - 0x46800000  # beneath 2^-6
    code = tl.where(size < 0x3C800000, small, tl.minimum(usual, LARGEST_FP8))
    code = tl.where(size < 0x7F800000, code | ((bits >> 24) & 0x80), NO_NUMBER_FP8)
    return code.to(tl.uint8).to(tl.float8e4nv, bitcast=True)


@triton.jit
def stored(numbers, planes):
    """The numbers as `planes` hold them."""
    if planes.dtype.element_ty == tl.float8e4nv:
        return _fp8_of(numbers)
    return numbers.to(planes.dtype.element_ty)


@triton.jit(do_not_specialize=["num_rows"])
def store_rows(
    keys,  # [B, K, D, 16], of the model's dtype or fp8
    values,  # [B, K, 16, V]
    key,  # [K, N, D]
    value,  # [K, N, V]
    slots,
    num_rows,
    key_head,
    key_row,
    value_head,
    value_row,
    NUM_KV_HEADS: tl.constexpr,
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    KEY_WIDTH: tl.constexpr,
    VALUE_WIDTH: tl.constexpr,
):
    """Grid: (padded rows / 16, kv heads)."""
    head = tl.program_id(1)
    row_M = tl.program_id(0) * SLOTS + tl.arange(0, SLOTS)
    slot_M = tl.load(slots + row_M, mask=row_M < num_rows, other=0)
    column_D, column_V = tl.arange(0, KEY_WIDTH), tl.arange(0, VALUE_WIDTH)
    is_key_MD = (row_M < num_rows)[:, None] & (column_D < KEY_DIM)[None, :]
    key_MD = tl.load(key + head * key_head + row_M[:, None] * key_row + column_D[None, :], mask=is_key_MD)
    tl.store(keys + key_places(slot_M, head, column_D, NUM_KV_HEADS, KEY_DIM), stored(key_MD, keys), mask=is_key_MD)
    is_value_MV = (row_M < num_rows)[:, None] & (column_V < VALUE_DIM)[None, :]
    value_MV = tl.load(value + head * value_head + row_M[:, None] * value_row + column_V[None, :], mask=is_value_MV)
    value_at_MV = values + value_places(slot_M, head, column_V, NUM_KV_HEADS, VALUE_DIM)
    tl.store(value_at_MV, stored(value_MV, values), mask=is_value_MV)


@triton.jit
def _soft_capped(scores_MN, SOFTCAP: tl.constexpr):
    """SOFTCAP * tanh(scores / SOFTCAP), by an exponential that cannot overflow."""
    small_MN = tl.exp2(tl.abs(scores_MN) * (-2 * LOG2_E / SOFTCAP))
    capped_MN = SOFTCAP * (1 - small_MN) / (1 + small_MN)
    return tl.where(scores_MN < 0, -capped_MN, capped_MN)


@triton.jit
def _meet(
    state,
    query_MD,
    position_M,
    low_M,
    first_key,
    end,
    head,
    keys,
    values,
    table,
    nodes,
    base,
    length,
    scaling,
    NUM_KV_HEADS: tl.constexpr,
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    VALUE_WIDTH: tl.constexpr,
    SOFTCAP: tl.constexpr,
    HAS_LOW: tl.constexpr,
    IS_TAIL: tl.constexpr,
    N: tl.constexpr,
):
    """Add the keys of N positions from `first_key` on to a tile's state. IS_TAIL: not every row may see all of them.

    state: each pair's largest score, sum of weights, and weighted sum of values. nodes: which nodes of the segment's
    tree are at the positions from `base` on; before it keys lie in order of their positions. length: of what is
    committed, which the tree's keys lie behind.
    """
    top_M, total_M, sum_MV = state
    column_D, column_V = tl.arange(0, query_MD.shape[1]), tl.arange(0, VALUE_WIDTH)
    position_N = first_key + tl.arange(0, N)
    is_key_N = position_N < end
    if IS_TAIL:
        is_node_N = is_key_N & (position_N >= base)
        node_N = tl.load(nodes + (position_N - base), mask=is_node_N, other=0)
        key_N = tl.where(is_node_N, length + node_N, position_N)
        block_N = tl.load(table + key_N // SLOTS, mask=is_key_N, other=0)
    else:
        key_N = position_N
        block_N = tl.load(table + key_N // SLOTS)
    plane_N = block_N.to(tl.int64) * NUM_KV_HEADS + head
    place_DN = (plane_N * (KEY_DIM * SLOTS) + key_N % SLOTS)[None, :] + (column_D * SLOTS)[:, None]
    if not IS_TAIL:
        place_DN = tl.max_contiguous(tl.multiple_of(place_DN, [1, SLOTS]), [1, SLOTS])  # a block's keys, side by side
    if query_MD.shape[1] == KEY_DIM:
        keys_DN = tl.load(keys + place_DN)
    else:
        keys_DN = tl.load(keys + place_DN, mask=(column_D < KEY_DIM)[:, None], other=0.0)
    scores_MN = tl.dot(query_MD, keys_DN.to(query_MD.dtype), input_precision="ieee")
    if SOFTCAP > 0:
        scores_MN = _soft_capped(scores_MN * scaling, SOFTCAP)
    factor = LOG2_E if SOFTCAP > 0 else scaling
    if IS_TAIL:
        scores_MN = tl.where(position_N[None, :] <= position_M[:, None], scores_MN, NEVER)
    if HAS_LOW:
        scores_MN = tl.where(position_N[None, :] >= low_M[:, None], scores_MN, NEVER)
    new_top_M = tl.maximum(top_M, tl.max(scores_MN, 1) * factor)
    safe_M = tl.where(new_top_M == NEVER, 0.0, new_top_M) if IS_TAIL or HAS_LOW else new_top_M
    weights_MN = tl.exp2(tl.fma(scores_MN, tl.full(scores_MN.shape, factor, tl.float32), -safe_M[:, None]))
    shrink_M = tl.exp2(top_M - safe_M)
    place_NV = ((plane_N * SLOTS + key_N % SLOTS) * VALUE_DIM)[:, None] + column_V[None, :]
    if IS_TAIL:  # unwritten slots may hold NaN, which stays NaN when multiplied by a weight of zero
        values_NV = tl.load(values + place_NV, mask=is_key_N[:, None] & (column_V < VALUE_DIM)[None, :], other=0.0)
    elif VALUE_WIDTH == VALUE_DIM:
        values_NV = tl.load(values + place_NV)
    else:
        values_NV = tl.load(values + place_NV, mask=(column_V < VALUE_DIM)[None, :], other=0.0)
    total_M = total_M * shrink_M + tl.sum(weights_MN, 1)
    sum_MV = sum_MV * shrink_M[:, None]
    values_NV = values_NV.to(query_MD.dtype)
    sum_MV = tl.dot(weights_MN.to(values_NV.dtype), values_NV, sum_MV, input_precision="ieee")
    return new_top_M, total_M, sum_MV


@triton.jit
def attend_tiles(
    query,  # [H, T, D]
    keys,
    values,
    sinks,  # [H]
    out,  # [T, H, V]
    sums,  # float32 [partial sums, H, V]
    stats,  # float32 [partial sums, H, 2]: largest score, sum of weights
    step,  # a `Step`
    query_head,
    query_row,
    scaling,  # times log2(e), where no soft-cap comes between
    KIND: tl.constexpr,
    NUM_KINDS: tl.constexpr,
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
    M: tl.constexpr,
    N: tl.constexpr,
):
    """Grid: as many programs as the device runs at once. They divide the items of the work list, for each kv head."""
    NUM_HEADS: tl.constexpr = NUM_KV_HEADS * GROUP
    HAS_LOW: tl.constexpr = WINDOW > 0 or CHUNK > 0
    column_D, column_V = tl.arange(0, KEY_WIDTH), tl.arange(0, VALUE_WIDTH)
    items = step.work + tl.load(step.work + 2 * KIND + 1)
    for number in range(tl.program_id(0), tl.load(step.work + 2 * KIND) * NUM_KV_HEADS, tl.num_programs(0)):
        head, item = number % NUM_KV_HEADS, items + number // NUM_KV_HEADS * ITEM
        segment, first_pair, place = tl.load(item), tl.load(item + 1), tl.load(item + 2)
        start, end, path = tl.load(item + 3), tl.load(item + 4), tl.load(item + 5)
        ranges = step.work + 2 * NUM_KINDS + segment * SEGMENT
        num_ranges, first_partial = tl.load(ranges + 1), tl.load(ranges + 2)
        length, first_row = tl.load(step.lengths + segment), tl.load(step.first_rows + segment)
        table = step.blocks + tl.load(step.table_offsets + segment)

        is_path = path >= 0
        record = step.work + tl.where(is_path, path, 0)
        num_rows = tl.load(step.first_rows + segment + 1) - first_row
        num_rows = tl.where(is_path, tl.load(record), num_rows)
        base = tl.where(is_path, tl.load(record + 1), FAR)
        rows, nodes = record + 2, record + 2 + num_rows
        pair_M = first_pair + tl.arange(0, M)
        row_M, head_M = pair_M // GROUP, head * GROUP + pair_M % GROUP
        is_row_M = row_M < num_rows
        listed_M = tl.load(rows + row_M, mask=row_M < tl.where(is_path, num_rows, 0), other=0)
        row_M = tl.where(is_path, listed_M, row_M)
        query_at_M = (first_row + row_M) * query_row + head_M * query_head
        is_query_MD = is_row_M[:, None] & (column_D < KEY_DIM)[None, :]
        query_MD = tl.load(query + query_at_M[:, None] + column_D[None, :], mask=is_query_MD, other=0.0)
        position_M = tl.load(step.positions + first_row + row_M, mask=is_row_M, other=-1)
        low_M = tl.zeros([M], tl.int32)
        if WINDOW:  # low_M: the first position that a row sees
            low_M = tl.where(is_row_M, tl.maximum(low_M, position_M - WINDOW + 1), FAR)
        if CHUNK:
            low_M = tl.where(is_row_M, tl.maximum(low_M, position_M // CHUNK * CHUNK), FAR)

        start = tl.maximum(start, tl.min(low_M, 0) // N * N)
        end = tl.minimum(end, tl.max(position_M, 0) + 1)
        seen_by_all = tl.min(tl.where(is_row_M, position_M, FAR), 0) + 1
        border = tl.maximum(start, tl.minimum(tl.minimum(end, base), seen_by_all) // N * N)

        top_M = tl.full([M], NEVER, tl.float32)
        total_M = tl.zeros([M], tl.float32)
        if HAS_SINKS:  # a sink counts as one more key, without a value, in the first range
            sink_M = tl.load(sinks + head_M).to(tl.float32) * LOG2_E
            top_M = tl.where(place == 0, sink_M, top_M)
            total_M = tl.where(place == 0, 1.0, total_M)
        sum_MV = tl.zeros([M, VALUE_WIDTH], tl.float32)
        for first_key in range(start, border, N):
            top_M, total_M, sum_MV = _meet(
                (top_M, total_M, sum_MV), query_MD, position_M, low_M, first_key, end, head, keys, values, table, nodes,
                base, length, scaling, NUM_KV_HEADS, KEY_DIM, VALUE_DIM, VALUE_WIDTH, SOFTCAP, HAS_LOW, False, N,
            )  # fmt: skip
        for first_key in tl.range(border, end, N, num_stages=2):
            top_M, total_M, sum_MV = _meet(
                (top_M, total_M, sum_MV), query_MD, position_M, low_M, first_key, end, head, keys, values, table, nodes,
                base, length, scaling, NUM_KV_HEADS, KEY_DIM, VALUE_DIM, VALUE_WIDTH, SOFTCAP, HAS_LOW, True, N,
            )  # fmt: skip

        is_value_MV = is_row_M[:, None] & (column_V < VALUE_DIM)[None, :]
        if num_ranges == 1:
            at_M = (first_row + row_M) * NUM_HEADS + head_M
            mean_MV = sum_MV / tl.where(total_M > 0, total_M, 1.0)[:, None]
            out_at_MV = out + at_M[:, None] * VALUE_DIM + column_V[None, :]
            tl.store(out_at_MV, mean_MV.to(out.dtype.element_ty), mask=is_value_MV)
        else:
            partial_M = ((first_partial + row_M * num_ranges + place) * NUM_HEADS + head_M).to(tl.int64)
            tl.store(stats + 2 * partial_M, top_M, mask=is_row_M)
            tl.store(stats + 2 * partial_M + 1, total_M, mask=is_row_M)
            sums_at_MV = sums + partial_M[:, None] * VALUE_DIM + column_V[None, :]
            tl.store(sums_at_MV, sum_MV, mask=is_value_MV & (total_M > 0)[:, None])


@triton.jit(do_not_specialize=["num_rows"])
def merge_ranges(
    out,
    sums,
    stats,
    row_segments,
    first_rows,
    positions,
    work,
    num_rows,
    NUM_KINDS: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    VALUE_WIDTH: tl.constexpr,
):
    """Grid: (rows of the result, query heads). Padding rows become zeros; rows of one range are complete already."""
    row = tl.program_id(0)
    segment = tl.load(row_segments + row) if row < num_rows else -1
    num_ranges = tl.load(work + 2 * NUM_KINDS + segment * SEGMENT + 1) if segment >= 0 else 0
    if num_ranges != 1:
        head, num_heads = tl.program_id(1), tl.num_programs(1)
        column_V = tl.arange(0, VALUE_WIDTH)
        mean_V = tl.zeros([VALUE_WIDTH], tl.float32)
        if num_ranges > 0:
            ranges = work + 2 * NUM_KINDS + segment * SEGMENT
            own = _num_ranges(tl.load(positions + row), tl.load(ranges))
            first = tl.load(ranges + 2) + (row - tl.load(first_rows + segment)) * num_ranges
            place_A = tl.arange(0, RANGES)
            at_A = (first + place_A).to(tl.int64) * num_heads + head
            top = tl.max(tl.load(stats + 2 * at_A, mask=place_A < own, other=NEVER), 0)
            total = 0.0
            for start in range(0, own, MERGED):
                place_R = start + tl.arange(0, MERGED)
                at_R = (first + place_R).to(tl.int64) * num_heads + head
                top_R = tl.load(stats + 2 * at_R, mask=place_R < own, other=NEVER)
                total_R = tl.load(stats + 2 * at_R + 1, mask=place_R < own, other=0.0)
                is_sum_RV = (total_R > 0)[:, None] & (column_V < VALUE_DIM)[None, :]
                sum_RV = tl.load(sums + at_R[:, None] * VALUE_DIM + column_V[None, :], mask=is_sum_RV, other=0.0)
                weight_R = tl.exp2(top_R - top)
                mean_V += tl.sum(sum_RV * weight_R[:, None], 0)
                total += tl.sum(total_R * weight_R, 0)
            mean_V = mean_V / total
        out_at_V = out + (row * num_heads + head) * VALUE_DIM + column_V
        tl.store(out_at_V, mean_V.to(out.dtype.element_ty), mask=column_V < VALUE_DIM)


@triton.jit
def _num_ranges(position, stride):
    """How many of its segment's ranges a row sees: those that begin at its position or before (see `work.start_of`)."""
    place_A = tl.arange(0, RANGES) * stride
    unit_A = tl.where(place_A < ALIKE, place_A, (ALIKE + place_A % ALIKE) << (tl.maximum(place_A // ALIKE, 1) - 1))
    is_seen_A = (place_A < RANGES) & (unit_A * FIRST_LEN <= position)
    return tl.sum(is_seen_A.to(tl.int32), 0)
