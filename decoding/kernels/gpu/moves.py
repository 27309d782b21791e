"""Moves rows of keys and values to other slots on a device: those of all sequences of a step, in all layers, in one
launch.

Knows slots alone. Invariant: of a sequence's moves none writes what a later one reads.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import torch
import triton
import triton.language as tl

from decoding.kernels.layout import BLOCK_LEN

# Shape suffixes: P planes, B blocks, H kv heads, D key width, V value width, S slots of a block.
SLOTS = tl.constexpr(BLOCK_LEN)


@triton.jit(do_not_specialize=["num_sequences"])
def move(
    keys,  # [P, B, H, D, S]
    values,  # [P, B, H, S, V]
    moves,  # int64: where each sequence's moves begin and the last ones end, then source and target of each
    num_sequences,
    num_blocks,
    NUM_HEADS: tl.constexpr,
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    KEY_WIDTH: tl.constexpr,
    VALUE_WIDTH: tl.constexpr,
):
    """Grid: (planes times kv heads, sequences)."""
    plane, head = (tl.program_id(0) // NUM_HEADS).to(tl.int64), tl.program_id(0) % NUM_HEADS
    column_D, column_V = tl.arange(0, KEY_WIDTH), tl.arange(0, VALUE_WIDTH)
    is_key_D, is_value_V = column_D < KEY_DIM, column_V < VALUE_DIM
    pairs = moves + num_sequences + 1
    for number in range(tl.load(moves + tl.program_id(1)), tl.load(moves + tl.program_id(1) + 1)):
        source, target = tl.load(pairs + 2 * number), tl.load(pairs + 2 * number + 1)
        from_plane = (plane * num_blocks + source // SLOTS) * NUM_HEADS + head
        to_plane = (plane * num_blocks + target // SLOTS) * NUM_HEADS + head
        key_D = tl.load(keys + (from_plane * KEY_DIM + column_D) * SLOTS + source % SLOTS, mask=is_key_D)
        value_V = tl.load(values + (from_plane * SLOTS + source % SLOTS) * VALUE_DIM + column_V, mask=is_value_V)
        tl.debug_barrier()  # a row may be written where another one was read
        tl.store(keys + (to_plane * KEY_DIM + column_D) * SLOTS + target % SLOTS, key_D, mask=is_key_D)
        tl.store(values + (to_plane * SLOTS + target % SLOTS) * VALUE_DIM + column_V, value_V, mask=is_value_V)


def move_rows(keys_PBHDS: torch.Tensor, values_PBHSV: torch.Tensor, moves: torch.Tensor, num_sequences: int) -> None:
    """moves: on the tensors' device, as `move` reads them."""
    bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[keys_PBHDS.itemsize]
    keys_PBHDS, values_PBHSV = keys_PBHDS.view(bits), values_PBHSV.view(bits)  # whatever numbers they are
    num_planes, num_blocks, num_heads, key_dim, _ = keys_PBHDS.shape
    value_dim = values_PBHSV.shape[-1]
    widths = triton.next_power_of_2(key_dim), triton.next_power_of_2(value_dim)
    move[(num_planes * num_heads, num_sequences)](
        keys_PBHDS, values_PBHSV, moves, num_sequences, num_blocks, num_heads, key_dim, value_dim, *widths, num_warps=4
    )
