"""Adds up what attention computed of a row's keys apart, in Triton: blocks of keys to ranges, ranges to a result.

`fold` is also what attention's own programs add blocks up by. Softmax is in base 2. A state is the largest score, the
sum of weights and the weighted sum of values.
Invariant: the blocks of a range are added up one by one in the order of their positions, from none on, wherever that is
done: a row has the same bits whether one program computes its range or several.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import triton
import triton.language as tl

from decoding.kernels.gpu import work_list

# Shape suffixes: M rows of a state, V value width, padded to a power of two, R ranges that are
# merged at a time.
ROW, PLACE = tl.constexpr(work_list.ROW_WORDS), tl.constexpr(work_list.PLACE_WORDS)
NO_END = tl.constexpr(work_list.NO_END)
MERGED = tl.constexpr(8)
NEVER = tl.constexpr(float("-inf"))


@triton.jit
def fold(top_M, total_M, sum_MV, other_top_M, other_total_M, other_sum_MV):
    """A state and that of the keys after it, as one state."""
    new_top_M = tl.maximum(top_M, other_top_M)
    safe_M = tl.where(new_top_M == NEVER, 0.0, new_top_M)
    own_M, other_M = tl.exp2(top_M - safe_M), tl.exp2(other_top_M - safe_M)
    total_M = tl.fma(other_total_M, other_M, total_M * own_M)
    other_MV = tl.broadcast_to(other_M[:, None], sum_MV.shape)
    return new_top_M, total_M, tl.fma(other_sum_MV, other_MV, sum_MV * own_M[:, None])


@triton.jit
def merge_ranges(
    out,
    sums,
    stats,
    work,
    NUM_LISTS: tl.constexpr,
    AT_ONCE: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    VALUE_WIDTH: tl.constexpr,
):
    """Grid: (rows of the result, query heads). Padding rows become zeros; rows of one range are complete already.
    AT_ONCE: partial sums of each range that are read before the first is added."""
    row, head, num_heads = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    record = work + 2 * NUM_LISTS + 1 + row * ROW
    is_row = row < tl.load(work + 2 * NUM_LISTS)
    num_ranges, num_parts, first = tl.load(record), tl.load(record + 1), tl.load(record + 2)
    places, position = work + tl.load(record + 3), tl.load(record + 4)
    if (num_ranges > 0) | (is_row == 0):
        num_ranges = tl.where(is_row, num_ranges, 0)
        column_V = tl.arange(0, VALUE_WIDTH)
        top, total = tl.full([], NEVER, tl.float32), tl.where(is_row, 0.0, 1.0)
        mean_V = tl.zeros([VALUE_WIDTH], tl.float32)
        for number in range(0, num_ranges, MERGED):
            number_R = number + tl.arange(0, MERGED)
            top_R, total_R = tl.full([MERGED], NEVER, tl.float32), tl.zeros([MERGED], tl.float32)
            sum_RV = tl.zeros([MERGED, VALUE_WIDTH], tl.float32)
            for first_part in range(0, num_parts, AT_ONCE):
                for part in tl.static_range(AT_ONCE):
                    place_R = places + (number_R * num_parts + first_part + part) * PLACE
                    is_place_R = number_R < tl.where(first_part + part < num_parts, num_ranges, 0)
                    is_there_R = tl.load(place_R + 1, mask=is_place_R, other=NO_END) <= position
                    at_R = first + tl.load(place_R, mask=is_place_R, other=0)
                    at_R = at_R.to(tl.int64) * num_heads + head
                    next_top_R = tl.load(stats + 2 * at_R, mask=is_there_R, other=NEVER)
                    next_total_R = tl.load(stats + 2 * at_R + 1, mask=is_there_R, other=0.0)
                    is_sum_RV = is_there_R[:, None] & (column_V < VALUE_DIM)[None, :]
                    sum_at_RV = sums + at_R[:, None] * VALUE_DIM + column_V[None, :]
                    next_sum_RV = tl.load(sum_at_RV, mask=is_sum_RV, other=0.0)
                    top_R, total_R, sum_RV = fold(top_R, total_R, sum_RV, next_top_R, next_total_R, next_sum_RV)
            new_top = tl.maximum(top, tl.max(top_R, 0))
            safe = tl.where(new_top == NEVER, 0.0, new_top)
            weight_R, shrink = tl.exp2(top_R - safe), tl.exp2(top - safe)
            mean_V = mean_V * shrink + tl.sum(sum_RV * weight_R[:, None], 0)
            total = total * shrink + tl.sum(total_R * weight_R, 0)
            top = new_top
        out_at_V = out + (row * num_heads + head) * VALUE_DIM + column_V
        tl.store(out_at_V, (mean_V / total).to(out.dtype.element_ty), mask=column_V < VALUE_DIM)
