"""Adds up what attention computed of a row's keys apart, in Triton: blocks of keys to ranges, ranges to a result.

`fold` is also what attention's own programs add blocks up by. Softmax is in base 2. A state is the largest score, the sum
of weights and the weighted sum of values.
Invariant: the blocks of a range are added up one by one in the order of their positions, from none on, wherever that is
done: a row has the same bits whether one program computes its range or several.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import triton
import triton.language as tl

from decoding.kernels.gpu.work_list import MOST_RANGES, OCTAVE, SEGMENT_WORDS, SPLIT
from decoding.kernels.gpu.work_list import NO_END as END_OF_ALL

# Shape suffixes: M rows of a state, V value width, padded to a power of two, R ranges that are merged at a time, A all.
SEGMENT = tl.constexpr(SEGMENT_WORDS)
RANGES = tl.constexpr(MOST_RANGES)
MERGED = tl.constexpr(8)
FIRST_LEN = tl.constexpr(SPLIT)
ALIKE = tl.constexpr(OCTAVE)
NO_END = tl.constexpr(END_OF_ALL)
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
    NUM_LISTS: tl.constexpr,
    KEYS: tl.constexpr,
    AT_ONCE: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    VALUE_WIDTH: tl.constexpr,
):
    """Grid: (rows of the result, query heads). Padding rows become zeros; rows of one range are complete already. KEYS: of
    a block. AT_ONCE: partial sums of each range that are read before the first is added."""
    row = tl.program_id(0)
    segment = tl.load(row_segments + row) if row < num_rows else -1
    cuts = work + 2 * NUM_LISTS + segment * SEGMENT  # see `work_list.Cuts`
    each = tl.load(cuts + 4) if segment >= 0 else 0
    if each != 1:
        head, num_heads = tl.program_id(1), tl.num_programs(1)
        column_V = tl.arange(0, VALUE_WIDTH)
        mean_V = tl.zeros([VALUE_WIDTH], tl.float32)
        if each > 0:
            first = tl.load(cuts + 2) + (row - tl.load(first_rows + segment)) * each
            mean_V = _mean(sums, stats, cuts, first, tl.load(positions + row), KEYS, AT_ONCE, VALUE_DIM, VALUE_WIDTH)
        out_at_V = out + (row * num_heads + head) * VALUE_DIM + column_V
        tl.store(out_at_V, mean_V.to(out.dtype.element_ty), mask=column_V < VALUE_DIM)


@triton.jit
def _mean(
    sums, stats, cuts, first, position,
    KEYS: tl.constexpr, AT_ONCE: tl.constexpr, VALUE_DIM: tl.constexpr, VALUE_WIDTH: tl.constexpr,
):  # fmt: skip
    """Of all ranges that a row at a position sees, whose partial sums begin at `first`."""
    stride, most_parts = tl.load(cuts), tl.load(cuts + 6)
    num_ranges = tl.sum((_start_of(tl.arange(0, RANGES) * stride) <= position).to(tl.int32), 0)
    top, total = tl.full([], NEVER, tl.float32), 0.0
    mean_V = tl.zeros([VALUE_WIDTH], tl.float32)
    column_V = tl.arange(0, VALUE_WIDTH)
    for start in range(0, num_ranges, MERGED):
        top_R, total_R = tl.full([MERGED], NEVER, tl.float32), tl.zeros([MERGED], tl.float32)
        sum_RV = tl.zeros([MERGED, VALUE_WIDTH], tl.float32)
        for first_part in range(0, most_parts, AT_ONCE):
            for part in tl.static_range(AT_ONCE):
                place_R, is_there_R = _partials_of(cuts, start, stride, first_part + part, position, KEYS)
                at_R = (first + place_R).to(tl.int64) * tl.num_programs(1) + tl.program_id(1)
                next_top_R = tl.load(stats + 2 * at_R, mask=is_there_R, other=NEVER)
                next_total_R = tl.load(stats + 2 * at_R + 1, mask=is_there_R, other=0.0)
                is_sum_RV = is_there_R[:, None] & (column_V < VALUE_DIM)[None, :]
                next_sum_RV = tl.load(sums + at_R[:, None] * VALUE_DIM + column_V[None, :], mask=is_sum_RV, other=0.0)
                top_R, total_R, sum_RV = fold(top_R, total_R, sum_RV, next_top_R, next_total_R, next_sum_RV)
        new_top = tl.maximum(top, tl.max(top_R, 0))
        safe = tl.where(new_top == NEVER, 0.0, new_top)
        weight_R, shrink = tl.exp2(top_R - safe), tl.exp2(top - safe)
        mean_V = mean_V * shrink + tl.sum(sum_RV * weight_R[:, None], 0)
        total = total * shrink + tl.sum(total_R * weight_R, 0)
        top = new_top
    return mean_V / total


@triton.jit
def _partials_of(cuts, start, stride, part, position, KEYS: tl.constexpr):
    """Of MERGED ranges from number `start` on: which partial sum of a row is the part with this number, and whether
    there is one that the row sees."""
    num_shared, parts, tail = tl.load(cuts + 1), tl.load(cuts + 3), tl.load(cuts + 5)
    number_R = start + tl.arange(0, MERGED)
    begin_R, end_R = _start_of(number_R * stride), _start_of((number_R + 1) * stride)
    is_split_R = (part < parts) & (end_R - begin_R == FIRST_LEN)
    is_shared_R = (part == 0) | (is_split_R & (begin_R + part * KEYS <= position))
    has_one_before_R = (begin_R < tail).to(tl.int32)  # of what lies before `tail` in its range
    key_R = tl.maximum(begin_R, tail) + (part - has_one_before_R) * KEYS
    is_before_R = key_R < tail
    is_single_R = is_before_R | (key_R < tl.minimum(end_R, position + 1))
    single_R = num_shared * parts + tl.where(is_before_R, 0, 1 + (key_R - tail) // KEYS)
    is_listed_R = number_R >= num_shared
    is_there_R = (begin_R <= position) & tl.where(is_listed_R, is_single_R, is_shared_R)
    return tl.where(is_listed_R, single_R, number_R * parts + part), is_there_R


@triton.jit
def _start_of(place):
    """The first position of a range, as `work_list.start_of`."""
    octave = tl.minimum(tl.maximum(place // ALIKE, 1) - 1, RANGES // ALIKE)
    begin = tl.where(place < ALIKE, place, (ALIKE + place % ALIKE) << octave) * FIRST_LEN
    return tl.where(place >= RANGES, NO_END, begin)
