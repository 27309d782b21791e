"""The codes in the blocks of GGUF's most usual number formats: [N, bytes of a block] to [N, numbers of a block].

Compiled, and without Python's GIL, so that threads may unpack several tensors at once. Knows no scales. Trap: how
a loop is written decides whether it is vectorised, which is worth a factor of ten; measure after an edit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from decoding.kernels.numba_kernel import kernel


def codes_of(kernel: Callable[[Any, Any], None], blocks: torch.Tensor, num_codes: int) -> torch.Tensor:
    """blocks: uint8. num_codes: of a block."""
    codes = torch.empty(len(blocks), num_codes, dtype=torch.uint8)
    kernel(blocks.contiguous().numpy(), codes.numpy())
    return codes


@kernel(nogil=True)
def four_bits(blocks: Any, codes: Any) -> None:
    """The last 16 bytes of a block: all low halves, then all high ones."""
    half = codes.shape[1] // 2
    for block in range(len(blocks)):
        packed, row = blocks[block, blocks.shape[1] - half :], codes[block]
        for place in range(half):
            row[place] = packed[place] & 15
            row[half + place] = packed[place] >> 4


@kernel(nogil=True)
def five_bits(blocks: Any, codes: Any) -> None:
    """As `four_bits`, and before these bytes four of fifth bits, the first code's lowest."""
    half = codes.shape[1] // 2
    for block in range(len(blocks)):
        packed, row = blocks[block, blocks.shape[1] - half :], codes[block]
        fifths = blocks[block, blocks.shape[1] - half - 4 :]
        high = np.uint32(fifths[0] | fifths[1] << 8 | fifths[2] << 16 | fifths[3] << 24)
        for place in range(half):
            row[place] = packed[place] & 15 | (high >> place & 1) << 4
            row[half + place] = packed[place] >> 4 | (high >> (half + place) & 1) << 4


@kernel(nogil=True)
def q4_k(blocks: Any, codes: Any) -> None:
    width = codes.shape[1] // 8
    for block in range(len(blocks)):
        for part in range(4):
            packed, row = blocks[block, 16 + width * part :], codes[block, 2 * width * part :]
            for place in range(width):
                row[place] = packed[place] & 15
                row[width + place] = packed[place] >> 4


@kernel(nogil=True)
def q5_k(blocks: Any, codes: Any) -> None:
    for block in range(len(blocks)):
        for part in range(4):
            for place in range(32):
                both, high = blocks[block, 48 + 32 * part + place], blocks[block, 16 + place] >> (2 * part)
                codes[block, 64 * part + place] = both & 15 | (high & 1) << 4
                codes[block, 64 * part + 32 + place] = both >> 4 | (high & 2) << 3


@kernel(nogil=True)
def q6_k(blocks: Any, codes: Any) -> None:
    for block in range(len(blocks)):
        for half in range(2):
            for part in range(2):
                for place in range(32):
                    both = blocks[block, 64 * half + 32 * part + place]
                    high = blocks[block, 128 + 32 * half + place] >> (2 * part)
                    codes[block, 128 * half + 32 * part + place] = both & 15 | (high & 3) << 4
                    codes[block, 128 * half + 64 + 32 * part + place] = both >> 4 | (high & 48)


@kernel(nogil=True)
def six_bits(blocks: Any, codes: Any) -> None:
    """The factors of eight scales, then of eight minima, in the twelve bytes from the fifth on (ggml's
    get_scale_min_k4)."""
    for block in range(len(blocks)):
        packed, row = blocks[block, 4:16], codes[block]
        for place in range(4):
            scale, minimum, both = packed[place], packed[4 + place], packed[8 + place]
            row[place], row[8 + place] = scale & 63, minimum & 63
            row[4 + place], row[12 + place] = both & 15 | scale >> 6 << 4, both >> 4 | minimum >> 6 << 4
