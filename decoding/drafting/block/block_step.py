"""Blocks, and their rows as a step that the exact kernel attends with.

Knows no network. A block's rows are stored behind the tokens before it, where nobody reads them after the forward.
Invariant: no two blocks of a step have rows in the same slots.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from decoding.cache.batch import StepBatch
from decoding.cache.block_pool import num_blocks_for
from decoding.cache.kv_store import KvStore, slots_of
from decoding.core.tree import IntArray


class Block(NamedTuple):
    """ids: int64 [n], the root and masks. blocks: int32, of the cache, where the `num_before` tokens before it lie."""

    ids: NDArray[np.int64]
    blocks: IntArray
    num_before: int


def tables_of(blocks: Sequence[Block], spare: IntArray) -> list[IntArray] | None:
    """Of each block the cache's blocks for the tokens before it and its rows, which go to those that are spare where
    its sequence has no more; None where they are too few."""
    tables: list[IntArray] = []
    num_taken = 0
    for block in blocks:
        count = num_blocks_for(block.num_before + len(block.ids))
        own = block.blocks[:count]
        end = num_taken + count - len(own)
        if end > len(spare):
            return None
        tables.append(np.concatenate((own, spare[num_taken:end])))
        num_taken = end
    return tables


def block_step(blocks: Sequence[Block], tables: Sequence[IntArray], store: KvStore, *, is_causal: bool) -> StepBatch:
    """tables: as of `tables_of`. Where all rows of a block see all, each is a segment of its own, whose committed
    tokens are as many as the other keys: it reads them by their place, and its own row is stored by its slot."""
    sizes, before = np.array([len(each.ids) for each in blocks]), np.array([each.num_before for each in blocks])
    firsts = np.cumsum([0, *map(len, tables)])
    positions = [each.num_before + np.arange(len(each.ids)) for each in blocks]
    slots = [slots_of(table, each) for table, each in zip(tables, positions, strict=True)]
    positions_M = np.concatenate(positions)
    if is_causal:
        parents_P = np.concatenate([np.arange(size) - 1 for size in sizes])
    else:
        parents_P = np.full(len(positions_M), -1)
        firsts = np.append(np.repeat(firsts[:-1], sizes), firsts[-1])
        before, sizes = np.repeat(before + sizes - 1, sizes), np.ones(len(positions_M), np.int64)
    offsets = np.cumsum([0, *sizes]).astype(np.int32)
    return StepBatch(
        store=store,
        blocks_T=np.concatenate(tables).astype(np.int32),
        table_offsets=firsts.astype(np.int32),
        ids_M=np.concatenate([each.ids for each in blocks]),
        positions_M=positions_M,
        offsets=offsets,
        parents_P=parents_P.astype(np.int32),
        positions_P=positions_M,
        tree_offsets=offsets,
        num_written=np.zeros(len(sizes), np.int32),
        prefix_lens=before.astype(np.int32),
        is_chain=np.ones(len(sizes), np.bool_),
        write_slots_M=np.concatenate(slots),
        logit_rows_R=np.arange(len(positions_M)),
        logit_offsets=offsets,
    )
