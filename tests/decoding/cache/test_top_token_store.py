"""What prompts' rows were followed by is told to those who share the rows, and to nobody else."""

from __future__ import annotations

import numpy as np

from decoding.cache.block_pool import BLOCK_LEN, BlockPool
from decoding.cache.top_token_store import TopTokenStore
from decoding.core.top_tokens import TopTokens


def top_of(num_rows: int, num_top: int = 3) -> TopTokens:
    ids = np.arange(num_rows * num_top, dtype=np.int32).reshape(num_rows, num_top)
    return TopTokens(ids, (ids / 100).astype(np.float32))


def test_runs_of_noted_rows_are_read_with_their_places() -> None:
    store = TopTokenStore(BlockPool(4), 3)
    slots, top = np.array([40, 41, 7, 8, 9]), top_of(5)
    assert store.read(slots) == []
    store.write(slots[[1, 2, 4]], TopTokens(top.ids[[1, 2, 4]], top.probabilities[[1, 2, 4]]))
    runs = store.read(slots)
    assert [place for place, _ in runs] == [1, 4]
    assert np.array_equal(runs[0][1].ids, top.ids[1:3])
    assert np.array_equal(runs[1][1].probabilities, top.probabilities[4:])


def test_what_was_noted_of_a_blocks_last_holder_is_not_told_to_the_next() -> None:
    pool = BlockPool(1)
    store = TopTokenStore(pool, 3)
    table = pool.open()
    pool.resize(table, BLOCK_LEN)
    store.write(np.arange(BLOCK_LEN), top_of(BLOCK_LEN))
    assert len(store.read(np.arange(BLOCK_LEN))) == 1
    pool.release(table)
    pool.resize(pool.open(), 1)
    assert store.read(np.arange(BLOCK_LEN)) == []
