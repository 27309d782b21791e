"""The packed tokens of a step that is launched ahead: the roots that the step under way draws.

Knows of a step its `StepBatch` alone.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray

from decoding.cache.batch import StepBatch
from decoding.cache.block_pool import BLOCK_LEN
from decoding.core.tree import IntArray
from decoding.kernels.numba_kernel import kernel


def following(batch: StepBatch, places_B: NDArray[np.int64], added_B: IntArray, drawn_B: torch.Tensor) -> StepBatch:
    """The step after one all of whose tokens are kept, in which some of its segments bring one token more each: those
    at these places of the step, with the tokens there of `drawn_B`. added_B: the block that each segment's table has
    more than in that step, -1 for none."""
    assert batch.store.carried is None, "layers that carry a state are told what is kept"
    assert batch.turned is None, "what follows a picture is turned by more than its place"
    tables = batch.blocks_T, batch.table_offsets, batch.offsets, batch.prefix_lens
    blocks_T, table_offsets, prefix_lens, positions_M, write_slots_M = _follow(*tables, places_B, added_B)
    offsets, parents_P, num_written, is_chain, rows_M = _roots(len(places_B))
    return StepBatch(
        store=batch.store,
        blocks_T=blocks_T,
        table_offsets=table_offsets,
        ids_M=places_B,
        positions_M=positions_M,
        offsets=offsets,
        parents_P=parents_P,
        positions_P=positions_M,
        tree_offsets=offsets,
        num_written=num_written,
        prefix_lens=prefix_lens,
        is_chain=is_chain,
        write_slots_M=write_slots_M,
        logit_rows_R=rows_M,
        logit_offsets=offsets,
        drawn_B=drawn_B,
    )


@cache
def _roots(num: int) -> tuple[IntArray, IntArray, IntArray, NDArray[np.bool_], NDArray[np.int64]]:
    """Of so many trees of one node: offsets, parents, nodes that are written, whether they are chains, rows. Nobody
    writes to them."""
    offsets, rows_M = np.arange(num + 1, dtype=np.int32), np.arange(num)
    return offsets, np.full(num, -1, np.int32), np.zeros(num, np.int32), np.ones(num, np.bool_), rows_M


@kernel
def _follow(
    given_T: IntArray,
    given_table_offsets: IntArray,
    given_offsets: IntArray,
    given_lens: IntArray,
    places_B: NDArray[np.int64],
    added_B: IntArray,
) -> tuple[IntArray, IntArray, IntArray, NDArray[np.int64], NDArray[np.int64]]:
    """Of `following`: blocks, table offsets, committed tokens, positions and slots."""
    num = len(places_B)
    table_offsets, prefix_lens = np.zeros(num + 1, np.int32), np.empty(num, np.int32)
    positions_M, write_slots_M = np.empty(num, np.int64), np.empty(num, np.int64)
    for segment in range(num):
        place = places_B[segment]
        num_blocks = given_table_offsets[place + 1] - given_table_offsets[place] + (added_B[segment] >= 0)
        table_offsets[segment + 1] = table_offsets[segment] + num_blocks
    blocks_T = np.empty(table_offsets[num], np.int32)
    for segment in range(num):
        place, begin = places_B[segment], table_offsets[segment]
        first, end = given_table_offsets[place], given_table_offsets[place + 1]
        blocks_T[begin : begin + end - first] = given_T[first:end]
        if added_B[segment] >= 0:
            blocks_T[table_offsets[segment + 1] - 1] = added_B[segment]
        length = given_lens[place] + given_offsets[place + 1] - given_offsets[place]
        prefix_lens[segment], positions_M[segment] = length, length
        block = np.int64(blocks_T[begin + length // BLOCK_LEN])
        write_slots_M[segment] = block * BLOCK_LEN + length % BLOCK_LEN
    return blocks_T, table_offsets, prefix_lens, positions_M, write_slots_M
