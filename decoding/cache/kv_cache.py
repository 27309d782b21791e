"""A block pool with the store of one model: for whoever runs a model by itself, beside the engine."""

from __future__ import annotations

from decoding.cache.block_pool import BLOCK_LEN, BlockPool
from decoding.cache.kv_store import KvRows, KvStore


class KvCache:
    """Room for as many sequences as `store` holds."""

    def __init__(self, store: KvStore) -> None:
        self.store = store
        self.pool = BlockPool(store.num_blocks)

    def new_rows(self, num_tokens: int) -> KvRows:
        """Room for a sequence of `num_tokens`, which must be there."""
        rows = KvRows(self.pool.open())
        has_room = self.pool.resize(rows.table, num_tokens)
        assert has_room, (num_tokens, self.pool.num_available)
        return rows

    def fork(self, rows: KvRows, num_tokens: int) -> KvRows:
        """Room for `num_tokens`, which must be there, the first of them the committed rows of another sequence."""
        table = self.pool.fork(rows.table, rows.length)
        assert table is not None, (num_tokens, self.pool.num_available)
        if rows.length % BLOCK_LEN:
            last = table.num_blocks - 1
            self.store.copy_block(int(rows.table.blocks[last]), int(table.blocks[last]))
        has_room = self.pool.resize(table, num_tokens)
        assert has_room, (num_tokens, self.pool.num_available)
        return KvRows(table, rows.length)
