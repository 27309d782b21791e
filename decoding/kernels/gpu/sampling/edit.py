"""Logits processors on the device: copies rows under a bit mask, then changes them at a few tokens.

Computes the same as `logits_kernel`, in the same float64 arithmetic.
"""

# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

MASK_WORDS, CHANGE_WORDS = tl.constexpr(2), tl.constexpr(7)
ENTRY_WORDS = tl.constexpr(3)


@triton.jit
def mask(rows, masks, logits, edited, vocab_size, BLOCK: tl.constexpr):
    """Copy one block of one edited row. rows: int64 [E, 2], the row of the logits, and where its bits begin in `masks`
    (int32), -1 for none. NaN and infinity are kept, so that the row still shows as broken."""
    row, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    source, first = tl.load(rows + row * MASK_WORDS), tl.load(rows + row * MASK_WORDS + 1)
    ids = block * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(logits + source * vocab_size + ids, mask=ids < vocab_size, other=-float("inf"))
    if first >= 0:
        words = tl.load(masks + first + ids // 32, mask=ids < vocab_size, other=0)
        is_allowed = ((words >> (ids % 32)) & 1) != 0
        x = tl.where(is_allowed | (x != x) | (x == float("inf")), x, -float("inf"))
    tl.store(edited + row * vocab_size + ids, x, mask=ids < vocab_size)


@triton.jit
def change(changes, numbers, entries, biases, logits, edited, vocab_size, BLOCK: tl.constexpr):
    """Change the tokens of one list in one edited row. changes: int64 [C, 7], seen through `numbers` as float64: the
    edited row, the row of the logits, the list's first entry, its number of entries, and the three penalties. entries:
    int64 [., 3], seen through `biases` as float64: token, occurrences in the reply (-1: no penalty applies), bias. A
    later list of the same row overrides an earlier one; tokens that the mask forbids stay forbidden."""
    at = tl.program_id(0) * CHANGE_WORDS
    row, source = tl.load(changes + at) * vocab_size, tl.load(changes + at + 1) * vocab_size
    first, num_entries = tl.load(changes + at + 2), tl.load(changes + at + 3)
    presence, frequency, repetition = tl.load(numbers + at + 4), tl.load(numbers + at + 5), tl.load(numbers + at + 6)
    for start in range(0, num_entries, BLOCK):
        places = start + tl.arange(0, BLOCK)
        is_entry = places < num_entries
        entry = (first + places) * ENTRY_WORDS
        token = tl.load(entries + entry, mask=is_entry, other=0)
        count = tl.load(entries + entry + 1, mask=is_entry, other=-1)
        value = tl.load(logits + source + token, mask=is_entry, other=0.0).to(tl.float64)
        repeated = tl.where(value > 0, value / repetition, value * repetition)
        value = tl.where(count >= 0, repeated, value)
        value = tl.where(count > 0, value - frequency * count.to(tl.float64) - presence, value)
        value = value.to(tl.float32).to(tl.float64) + tl.load(biases + entry + 2, mask=is_entry, other=0.0)
        is_left = tl.load(edited + row + token, mask=is_entry, other=0.0) > -float("inf")
        tl.store(edited + row + token, value.to(tl.float32), mask=is_entry & is_left)
