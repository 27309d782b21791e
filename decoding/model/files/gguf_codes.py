"""The codes in the blocks of GGUF's most usual number formats: [N, bytes of a block] to [N, numbers of a block].

Compiled, and without Python's GIL, so that threads may unpack several tensors at once. Knows no scales.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba as nb
import torch


def codes_of(kernel: Callable[[Any, Any], None], blocks: torch.Tensor, num_codes: int) -> torch.Tensor:
    """blocks: uint8. num_codes: of a block."""
    codes = torch.empty(len(blocks), num_codes, dtype=torch.uint8)
    kernel(blocks.contiguous().numpy(), codes.numpy())
    return codes


@nb.njit(nogil=True, cache=True)
def four_bits(blocks: Any, codes: Any) -> None:
    """The last 16 bytes of a block: all low halves, then all high ones."""
    start = blocks.shape[1] - 16
    for block in range(len(blocks)):
        for place in range(16):
            both = blocks[block, start + place]
            codes[block, place] = both & 15
            codes[block, 16 + place] = both >> 4


@nb.njit(nogil=True, cache=True)
def five_bits(blocks: Any, codes: Any) -> None:
    """As `four_bits`, and before these bytes four of fifth bits, the first code's lowest."""
    start = blocks.shape[1] - 16
    for block in range(len(blocks)):
        high = 0
        for place in range(4):
            high |= blocks[block, start - 4 + place] << (8 * place)
        for place in range(16):
            both = blocks[block, start + place]
            codes[block, place] = both & 15 | (high >> place & 1) << 4
            codes[block, 16 + place] = both >> 4 | (high >> (16 + place) & 1) << 4


@nb.njit(nogil=True, cache=True)
def q4_k(blocks: Any, codes: Any) -> None:
    for block in range(len(blocks)):
        for part in range(4):
            for place in range(32):
                both = blocks[block, 16 + 32 * part + place]
                codes[block, 64 * part + place] = both & 15
                codes[block, 64 * part + 32 + place] = both >> 4


@nb.njit(nogil=True, cache=True)
def q5_k(blocks: Any, codes: Any) -> None:
    for block in range(len(blocks)):
        for part in range(4):
            for place in range(32):
                both, high = blocks[block, 48 + 32 * part + place], blocks[block, 16 + place] >> (2 * part)
                codes[block, 64 * part + place] = both & 15 | (high & 1) << 4
                codes[block, 64 * part + 32 + place] = both >> 4 | (high & 2) << 3


@nb.njit(nogil=True, cache=True)
def q6_k(blocks: Any, codes: Any) -> None:
    for block in range(len(blocks)):
        for half in range(2):
            for part in range(2):
                for place in range(32):
                    both = blocks[block, 64 * half + 32 * part + place]
                    high = blocks[block, 128 + 32 * half + place] >> (2 * part)
                    codes[block, 128 * half + 32 * part + place] = both & 15 | (high & 3) << 4
                    codes[block, 128 * half + 64 + 32 * part + place] = both >> 4 | (high & 48)
