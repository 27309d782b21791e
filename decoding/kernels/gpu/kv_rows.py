"""Where keys and values lie in the block pool, and the kernel that writes a step's to their slots, in Triton.

Invariant: a block's keys lie side by side for each of their numbers, and its values token by token.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import triton
import triton.language as tl

from decoding.kernels.layout import BLOCK_LEN

# Shape suffixes: M tokens, D key width and V value width, both padded to powers of two.
SLOTS = tl.constexpr(BLOCK_LEN)
LARGEST_FP8, NO_NUMBER_FP8 = tl.constexpr(0x7E), tl.constexpr(0x7F)


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
