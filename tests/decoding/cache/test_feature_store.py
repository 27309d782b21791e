"""What the target computed of a token is read by those who hold its block, and by nobody after them."""

from __future__ import annotations

import numpy as np
import torch

from decoding.cache.block_pool import BLOCK_LEN, BlockPool
from decoding.cache.feature_store import FeatureStore


def new_store(pool: BlockPool) -> FeatureStore:
    return FeatureStore(pool, 3, torch.float32, torch.device("cpu"))


def test_rows_are_read_where_they_were_written_and_known_up_to_the_first_that_was_not() -> None:
    store, slots, rows_KE = new_store(BlockPool(4)), np.array([40, 41, 7, 8, 9]), torch.arange(15.0).view(5, 3)
    assert store.num_known(slots) == 0
    store.write(slots[[0, 1, 3]], rows_KE[[0, 1, 3]])
    assert store.num_known(slots) == 2
    assert torch.equal(store.read(slots[[0, 1, 3]]), rows_KE[[0, 1, 3]])
    store.write(slots[[2, 4]], rows_KE[[2, 4]])
    assert store.num_known(slots) == 5
    assert torch.equal(store.read(slots), rows_KE)
    assert store.num_known(slots[:0]) == 0


def test_what_was_computed_for_a_blocks_last_holder_is_not_known_to_the_next() -> None:
    pool = BlockPool(1)
    store, slots, table = new_store(pool), np.arange(BLOCK_LEN), pool.open()
    pool.resize(table, BLOCK_LEN)
    store.write(slots, torch.ones(BLOCK_LEN, 3))
    assert store.num_known(slots) == BLOCK_LEN
    pool.release(table)
    pool.resize(pool.open(), 1)
    assert store.num_known(slots) == 0
