"""The block pool: the KV cache's blocks of 16 slots, who holds them, and which can be reused for the same tokens.

Owns block tables, reference counts and the order in which unused blocks are given away. It has no tensors: the stores
of all models number their blocks alike.
Invariant: a block's count is the number of tables that hold it; a block of count 0 is free, or idle and in the index.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from decoding.cache.prefix_index import PrefixIndex, block_digest
from decoding.cache.state_pool import StatePool
from decoding.core.tree import IntArray
from decoding.kernels.layout import BLOCK_LEN as BLOCK_LEN

NO_NAMESPACE = b""
_NO_BLOCKS: IntArray = np.empty(0, np.int32)


def num_blocks_for(num_tokens: int) -> int:
    """The number of blocks that hold `num_tokens`."""
    return -(-num_tokens // BLOCK_LEN)


@dataclass(eq=False, slots=True)
class BlockTable:
    """One sequence's blocks in the order of its tokens, for all models that run it. Only its pool writes it.

    digests: of the first blocks whose tokens the index knows. num_matched: how many blocks of its tokens the index had
    when it was last asked, whether they could be used or not.
    """

    namespace: bytes = NO_NAMESPACE
    num_blocks: int = 0
    digests: list[bytes] = field(default_factory=list)
    num_matched: int = 0
    _numbers: IntArray = field(default_factory=lambda: _NO_BLOCKS)

    @property
    def blocks(self) -> IntArray:
        """int32 [num_blocks]."""
        return self._numbers[: self.num_blocks]

    @property
    def num_hashed(self) -> int:
        return len(self.digests)

    @property
    def capacity(self) -> int:
        """The tokens that the blocks hold at most."""
        return self.num_blocks * BLOCK_LEN

    def append(self, block: int) -> None:
        """Add a block at the end. Only the pool calls this."""
        if self.num_blocks == len(self._numbers):
            self._numbers = np.concatenate((self._numbers, np.empty(self.num_blocks + 4, np.int32)))
        self._numbers[self.num_blocks] = block
        self.num_blocks += 1

    def pop(self) -> int:
        """Remove the last block and return it. Only the pool calls this."""
        self.num_blocks -= 1
        return int(self._numbers[self.num_blocks])


class BlockPool:
    """Gives out the cache's blocks. stamps: int64 [num_blocks], raised each time a block is given to a new holder, so
    that data stored beside a block can be told from its last holder's. states: beside the blocks, of a model whose
    layers carry some."""

    def __init__(self, num_blocks: int, index: PrefixIndex | None = None, states: StatePool | None = None) -> None:
        self.num_blocks = num_blocks
        self.states = states
        self.stamps: NDArray[np.int64] = np.ones(num_blocks, np.int64)
        self._index = index
        self._free = list(range(num_blocks - 1, -1, -1))
        self._idle: OrderedDict[int, None] = OrderedDict()  # in the index, in no table; least recently used first
        self._counts: NDArray[np.int32] = np.zeros(num_blocks, np.int32)
        self._tables: set[BlockTable] = set()

    @property
    def num_available(self) -> int:
        """The blocks that can be given out now: free or idle."""
        return len(self._free) + len(self._idle)

    @property
    def num_idle(self) -> int:
        """The blocks in no table that a later prompt may reuse."""
        return len(self._idle)

    @property
    def num_held(self) -> int:
        """The blocks that some table holds."""
        return self.num_blocks - self.num_available

    def open(self, namespace: bytes = NO_NAMESPACE) -> BlockTable:
        """A new empty table. namespace: it shares blocks only with tables of the same one."""
        table = BlockTable(namespace)
        self._tables.add(table)
        return table

    def resize(self, table: BlockTable, num_tokens: int) -> bool:
        """Lengthen or shorten the table to what `num_tokens` need. False, and no change, if too few blocks are left."""
        wanted = num_blocks_for(num_tokens)
        if wanted - table.num_blocks > self.num_available:
            return False
        assert wanted >= table.num_hashed, (wanted, table.num_hashed)
        while table.num_blocks > wanted:
            self._drop(table.pop())
        while table.num_blocks < wanted:
            table.append(self._take())
        return True

    def release(self, table: BlockTable) -> None:
        """Give all blocks back; the table is dead afterwards. Blocks in the index stay reusable until others need the
        room, those of a prompt's beginning longest."""
        self._tables.remove(table)
        while table.num_blocks:
            self._drop(table.pop())
        table.digests.clear()

    def find(self, table: BlockTable, tokens: IntArray, is_end: Callable[[int], bool] = lambda _: True) -> int:
        """Append the indexed blocks that hold the next of `tokens`; return how many. A table with blocks that are not
        hashed finds none. is_end: whether the blocks may end after so many tokens. Where layers carry a state, only
        those up to the last that has a checkpoint of it."""
        if self._index is None or table.num_hashed < table.num_blocks:
            return 0
        found: list[tuple[bytes, int]] = []
        num_usable = 0
        for digest in self.digests_after(table, tokens):
            block = self._index.find(digest)
            if block is None:
                break
            found.append((digest, block))
            has_state = self.states is None or self.states.knows(digest)
            if has_state and is_end((table.num_hashed + len(found)) * BLOCK_LEN):
                num_usable = len(found)
        table.num_matched = max(table.num_matched, table.num_hashed + len(found))
        for digest, block in found[:num_usable]:
            self._hold(block)
            table.append(block)
            table.digests.append(digest)
        return num_usable

    def publish(self, table: BlockTable, tokens: IntArray) -> None:
        """Put the table's full blocks into the index, by the tokens that they hold or will hold after the next forward.
        tokens: the sequence's, from its first."""
        if self._index is None or len(tokens) // BLOCK_LEN == table.num_hashed:
            return
        for digest in self.digests_after(table, tokens):
            self._index.add(digest, int(table.blocks[table.num_hashed]))
            table.digests.append(digest)

    def digests_after(self, table: BlockTable, tokens: IntArray) -> Iterator[bytes]:
        """The digests of the full blocks of `tokens` that follow the table's hashed ones."""
        digest = table.digests[-1] if table.digests else table.namespace
        for start in range(table.num_hashed * BLOCK_LEN, len(tokens) - BLOCK_LEN + 1, BLOCK_LEN):
            digest = block_digest(digest, tokens[start : start + BLOCK_LEN])
            yield digest

    def block_of(self, digest: bytes) -> int | None:
        """The block that the index has by this digest, or None."""
        return None if self._index is None else self._index.find(digest)

    def forget(self) -> None:
        """Take all idle blocks out of the index and free them, and drop all checkpoints."""
        while self._idle:
            block, _ = self._idle.popitem()
            assert self._index is not None, "only what the index knows is idle"
            self._index.remove(block)
            self._free.append(block)
        if self.states is not None:
            self.states.forget()

    def fork(self, table: BlockTable, num_tokens: int) -> BlockTable | None:
        """A new table that shares the full blocks of the first `num_tokens`; None if no block is left. It gets a block
        of its own for a partly filled one, whose content the caller must copy."""
        assert num_tokens <= table.capacity, (num_tokens, table.capacity)
        num_shared, rest = divmod(num_tokens, BLOCK_LEN)
        if rest and not self.num_available:
            return None
        copy = self.open()
        for block in table.blocks[:num_shared].tolist():
            self._hold(block)
            copy.append(block)
        if rest:
            copy.append(self._take())
        return copy

    def check_integrity(self) -> None:
        """Raise AssertionError unless the invariant holds."""
        counts = np.zeros(self.num_blocks, np.int32)
        for table in self._tables:
            assert len(np.unique(table.blocks)) == table.num_blocks, ("a block twice in a table", table.blocks)
            assert table.num_hashed <= table.num_blocks, table
            counts[table.blocks] += 1
        assert np.array_equal(counts, self._counts), "reference counts do not match the tables"
        assert not set(self._free) & set(self._idle), "a block both free and idle"
        assert sorted([*self._free, *self._idle]) == np.flatnonzero(counts == 0).tolist(), "blocks lost or held twice"
        if self._index is not None:
            assert all(block in self._index.digests for block in self._idle), "an idle block that cannot be found"
            assert not any(block in self._index.digests for block in self._free), "a free block that can be found"
        if self.states is not None:
            self.states.check_integrity()

    def _take(self) -> int:
        """Give out a free block, or else the least recently used idle one."""
        if self._free:
            block = self._free.pop()
        else:
            assert self._index is not None, "only what the index knows is idle"
            block, _ = self._idle.popitem(last=False)
            self._index.remove(block)
        self._counts[block] = 1
        self.stamps[block] += 1
        return block

    def _hold(self, block: int) -> None:
        self._counts[block] += 1
        self._idle.pop(block, None)

    def _drop(self, block: int) -> None:
        self._counts[block] -= 1
        if self._counts[block]:
            return
        if self._index is not None and block in self._index.digests:
            self._idle[block] = None
        else:
            self._free.append(block)
