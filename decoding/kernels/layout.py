"""How numbers lie that kernels share with those who lay them. Standard library only."""

from __future__ import annotations

BLOCK_LEN = 16  # tokens in a block of the KV cache: the keys that fill one vector, see `decoding.kernels.cpu.lanes`
HALF_TILE = 32  # inputs of packed weights on a GPU, whose 4-bit codes are the low or the high halves of as many bytes
SCALED, SCALE_BYTES = 32, 2  # numbers of a row of int8 keys or values that share a scale, and its size as bfloat16


def num_scale_bytes(width: int) -> int:
    """Of the scales of a row of `width` numbers."""
    return SCALE_BYTES * ((width + SCALED - 1) // SCALED)
