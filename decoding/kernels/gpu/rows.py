"""What a decoder layer computes between its matrix products, in Triton: each a launch of its own.

Numbers are float32 from what is loaded to what is stored. All that changes from step to step is the number of rows.
Invariant: a row's sums run in the same order whatever other rows there are.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import triton
import triton.language as tl

from decoding.kernels.gpu.kv_rows import key_places, stored, value_places
from decoding.kernels.layout import BLOCK_LEN

# Shape suffixes: N numbers of a row, padded to a power of two; M rows of a program, D key width, V value width, padded;
# C columns of half a head, padded.
SLOTS = tl.constexpr(BLOCK_LEN)


@triton.jit
def normalise(
    rows,  # [rows, WIDTH], side by side
    added,  # the same
    weight,  # [WIDTH]
    summed,  # [rows, WIDTH]
    normed,  # [rows, WIDTH]
    WIDTH: tl.constexpr,
    EPS: tl.constexpr,
    HAS_ADDED: tl.constexpr,
    N: tl.constexpr,
):
    """Each row divided by its root mean square, times the weight. Grid: rows. HAS_ADDED: `summed` = rows + added comes
    first."""
    column_N = tl.arange(0, N)
    place_N, is_number_N = tl.program_id(0).to(tl.int64) * WIDTH + column_N, column_N < WIDTH
    number_N = tl.load(rows + place_N, mask=is_number_N, other=0.0).to(tl.float32)
    if HAS_ADDED:
        number_N += tl.load(added + place_N, mask=is_number_N, other=0.0).to(tl.float32)
        sum_N = number_N.to(summed.dtype.element_ty)
        tl.store(summed + place_N, sum_N, mask=is_number_N)
        number_N = sum_N.to(tl.float32)
    scale = tl.rsqrt(tl.sum(number_N * number_N, 0) / WIDTH + EPS)
    weight_N = tl.load(weight + column_N, mask=is_number_N, other=0.0).to(tl.float32)
    tl.store(normed + place_N, (number_N * scale * weight_N).to(normed.dtype.element_ty), mask=is_number_N)


@triton.jit
def _turned(
    numbers,
    place_M,
    norm,
    cosines,
    sines,
    row_M,
    num_rows,
    KEY_DIM: tl.constexpr,
    HALF_WIDTH: tl.constexpr,
    EPS: tl.constexpr,
    HAS_NORM: tl.constexpr,
):
    """float32 [M, C]: both halves of a head, normalised if it has a norm, and turned. place_M: where the rows' heads
    begin."""
    HALF: tl.constexpr = KEY_DIM // 2
    column_C = tl.arange(0, HALF_WIDTH)
    is_column_C = column_C < HALF
    is_number_MC = (row_M < num_rows)[:, None] & is_column_C[None, :]
    number_at_MC = numbers + place_M[:, None] + column_C[None, :]
    low_MC = tl.load(number_at_MC, mask=is_number_MC, other=0.0).to(tl.float32)
    high_MC = tl.load(number_at_MC + HALF, mask=is_number_MC, other=0.0).to(tl.float32)
    if HAS_NORM:
        scale_M1 = tl.rsqrt(tl.sum(low_MC * low_MC + high_MC * high_MC, 1) / KEY_DIM + EPS)[:, None]
        low_MC *= scale_M1 * tl.load(norm + column_C, mask=is_column_C, other=0.0).to(tl.float32)[None, :]
        high_MC *= scale_M1 * tl.load(norm + column_C + HALF, mask=is_column_C, other=0.0).to(tl.float32)[None, :]
    place_MC = (row_M * KEY_DIM)[:, None] + column_C[None, :]
    low_cosine_MC = tl.load(cosines + place_MC, mask=is_number_MC, other=0.0).to(tl.float32)
    high_cosine_MC = tl.load(cosines + place_MC + HALF, mask=is_number_MC, other=0.0).to(tl.float32)
    low_sine_MC = tl.load(sines + place_MC, mask=is_number_MC, other=0.0).to(tl.float32)
    high_sine_MC = tl.load(sines + place_MC + HALF, mask=is_number_MC, other=0.0).to(tl.float32)
    return low_MC * low_cosine_MC - high_MC * low_sine_MC, high_MC * high_cosine_MC + low_MC * high_sine_MC


@triton.jit(do_not_specialize=["num_rows"])
def rotate_and_store(
    query,  # [rows, NUM_HEADS * KEY_DIM], query_row numbers apart
    key,  # [rows, NUM_KV_HEADS * KEY_DIM], key_row numbers apart
    value,  # [rows, NUM_KV_HEADS * VALUE_DIM], value_row numbers apart
    query_norm,  # [KEY_DIM]
    key_norm,  # [KEY_DIM]
    cosines,  # [rows, KEY_DIM]
    sines,  # [rows, KEY_DIM]
    rotated,  # [rows, NUM_HEADS, KEY_DIM]
    keys,  # [B, NUM_KV_HEADS, KEY_DIM, 16]
    values,  # [B, NUM_KV_HEADS, 16, VALUE_DIM]
    slots,  # [rows]
    query_row,
    key_row,
    value_row,
    num_rows,
    NUM_HEADS: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    HALF_WIDTH: tl.constexpr,
    VALUE_WIDTH: tl.constexpr,
    QUERY_EPS: tl.constexpr,
    KEY_EPS: tl.constexpr,
    HAS_NORMS: tl.constexpr,
):
    """Queries and keys are normalised where they have norms, and turned by their positions' angles; keys and values go
    to their slots. Grid: (rows / 16, heads of queries, of keys, and of values)."""
    HALF: tl.constexpr = KEY_DIM // 2
    head, row_M = tl.program_id(1), tl.program_id(0) * SLOTS + tl.arange(0, SLOTS)
    is_row_M, column_C = row_M < num_rows, tl.arange(0, HALF_WIDTH)
    is_number_MC = is_row_M[:, None] & (column_C < HALF)[None, :]
    if head < NUM_HEADS:
        place_M = row_M * query_row + head * KEY_DIM
        low_MC, high_MC = _turned(
            query, place_M, query_norm, cosines, sines, row_M, num_rows, KEY_DIM, HALF_WIDTH, QUERY_EPS, HAS_NORMS
        )
        rotated_at_MC = rotated + ((row_M * NUM_HEADS + head) * KEY_DIM)[:, None] + column_C[None, :]
        tl.store(rotated_at_MC, low_MC.to(rotated.dtype.element_ty), mask=is_number_MC)
        tl.store(rotated_at_MC + HALF, high_MC.to(rotated.dtype.element_ty), mask=is_number_MC)
    else:
        slot_M = tl.load(slots + row_M, mask=is_row_M, other=0)
        if head < NUM_HEADS + NUM_KV_HEADS:
            key_head = head - NUM_HEADS
            place_M = row_M * key_row + key_head * KEY_DIM
            low_MC, high_MC = _turned(
                key, place_M, key_norm, cosines, sines, row_M, num_rows, KEY_DIM, HALF_WIDTH, KEY_EPS, HAS_NORMS
            )
            low_at_MC = keys + key_places(slot_M, key_head, column_C, NUM_KV_HEADS, KEY_DIM)
            high_at_MC = keys + key_places(slot_M, key_head, column_C + HALF, NUM_KV_HEADS, KEY_DIM)
            tl.store(low_at_MC, stored(low_MC.to(key.dtype.element_ty), keys), mask=is_number_MC)
            tl.store(high_at_MC, stored(high_MC.to(key.dtype.element_ty), keys), mask=is_number_MC)
        else:
            value_head, column_V = head - NUM_HEADS - NUM_KV_HEADS, tl.arange(0, VALUE_WIDTH)
            is_value_MV = is_row_M[:, None] & (column_V < VALUE_DIM)[None, :]
            place_MV = (row_M * value_row + value_head * VALUE_DIM)[:, None] + column_V[None, :]
            value_MV = tl.load(value + place_MV, mask=is_value_MV, other=0.0)
            value_at_MV = values + value_places(slot_M, value_head, column_V, NUM_KV_HEADS, VALUE_DIM)
            tl.store(value_at_MV, stored(value_MV, values), mask=is_value_MV)


@triton.jit
def gate(
    gates,  # [rows, WIDTH], gate_row numbers apart
    ups,  # [rows, WIDTH], up_row numbers apart
    out,  # [rows, WIDTH]
    gate_row,
    up_row,
    WIDTH: tl.constexpr,
    N: tl.constexpr,
):
    """silu(gates) * ups. Grid: (rows, numbers of a row / N)."""
    row, column_N = tl.program_id(0).to(tl.int64), tl.program_id(1) * N + tl.arange(0, N)
    is_number_N = column_N < WIDTH
    gate_N = tl.load(gates + row * gate_row + column_N, mask=is_number_N, other=0.0).to(tl.float32)
    up_N = tl.load(ups + row * up_row + column_N, mask=is_number_N, other=0.0).to(tl.float32)
    gated_N = gate_N / (1 + tl.exp(-gate_N)) * up_N
    tl.store(out + row * WIDTH + column_N, gated_N.to(out.dtype.element_ty), mask=is_number_N)
