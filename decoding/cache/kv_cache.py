"""A block pool and one model's store, for code that runs a model without the engine."""

from __future__ import annotations

from decoding.cache.block_pool import BLOCK_LEN, BlockPool
from decoding.cache.kv_store import KvRows, KvStore
from decoding.cache.state_pool import StatePool


class KvCache:
    """Gives sequences blocks of `store`."""

    def __init__(self, store: KvStore) -> None:
        self.store = store
        states = StatePool(store.carried.shape, store.state_dtype, store.device) if store.carried else None
        self.pool = BlockPool(store.num_blocks, states=states)

    def new_rows(self, num_tokens: int) -> KvRows:
        """An empty sequence with room for `num_tokens`. The pool must have the blocks."""
        states = self.pool.states
        rows = KvRows(self.pool.open(), state=None if states is None else states.open())
        has_room = self.pool.resize(rows.table, num_tokens)
        assert has_room, (num_tokens, self.pool.num_available)
        return rows

    def fork(self, rows: KvRows, num_tokens: int) -> KvRows:
        """A sequence that begins with another one's committed tokens, with room for `num_tokens` in all. The pool must
        have the blocks."""
        table = self.pool.fork(rows.table, rows.length)
        assert table is not None, (num_tokens, self.pool.num_available)
        if rows.length % BLOCK_LEN:
            last = table.num_blocks - 1
            self.store.copy_block(int(rows.table.blocks[last]), int(table.blocks[last]))
        has_room = self.pool.resize(table, num_tokens)
        assert has_room, (num_tokens, self.pool.num_available)
        return KvRows(table, rows.length, rows.state and rows.state.pool.fork(rows.state))
