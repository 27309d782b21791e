"""The block pool: the KV cache's blocks of 16 slots, who holds them, and which can be found again by their tokens.

Owns block tables, reference counts and the order in which blocks nobody holds are given away. No tensors: the blocks
of every model's `KvStore` go by the same numbers.
Invariant: a block's count is the number of tables that hold it; blocks of count 0 are free, or idle and in the index.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from decoding.cache.prefix_index import PrefixIndex, block_digest
from decoding.config import BLOCK_LEN as BLOCK_LEN
from decoding.core.tree import IntArray

NO_NAMESPACE = b""
_NO_BLOCKS: IntArray = np.empty(0, np.int32)


def num_blocks_for(num_tokens: int) -> int:
    """Blocks that hold so many tokens."""
    return -(-num_tokens // BLOCK_LEN)


@dataclass(eq=False, slots=True)
class BlockTable:
    """One sequence's blocks in the order of its tokens, for all models that run it. Written by its pool alone.

    digest: of the first `num_hashed` blocks, whose tokens are known to the index; of the namespace where none is.
    """

    digest: bytes = NO_NAMESPACE
    num_blocks: int = 0
    num_hashed: int = 0
    _numbers: IntArray = field(default_factory=lambda: _NO_BLOCKS)

    @property
    def blocks(self) -> IntArray:
        """int32 [num_blocks]."""
        return self._numbers[: self.num_blocks]

    @property
    def capacity(self) -> int:
        """Tokens that there is room for."""
        return self.num_blocks * BLOCK_LEN

    def append(self, block: int) -> None:
        """For the pool."""
        if self.num_blocks == len(self._numbers):
            self._numbers = np.concatenate((self._numbers, np.empty(self.num_blocks + 4, np.int32)))
        self._numbers[self.num_blocks] = block
        self.num_blocks += 1

    def pop(self) -> int:
        """For the pool."""
        self.num_blocks -= 1
        return int(self._numbers[self.num_blocks])


class BlockPool:
    """num_blocks: of the cache. stamps: int64 [num_blocks], another number for each time a block is given to somebody,
    so that what is noted beside a block can be told from what was noted of its last holder."""

    def __init__(self, num_blocks: int, index: PrefixIndex | None = None) -> None:
        self.num_blocks = num_blocks
        self.stamps: NDArray[np.int64] = np.ones(num_blocks, np.int64)
        self._index = index
        self._free = list(range(num_blocks - 1, -1, -1))
        self._idle: OrderedDict[int, None] = OrderedDict()  # in the index, held by nobody; least recently used first
        self._counts: NDArray[np.int32] = np.zeros(num_blocks, np.int32)
        self._tables: set[BlockTable] = set()

    @property
    def num_available(self) -> int:
        """Blocks that can be had now: free or idle."""
        return len(self._free) + len(self._idle)

    @property
    def num_idle(self) -> int:
        """Blocks that nobody holds and that may be found again."""
        return len(self._idle)

    @property
    def num_held(self) -> int:
        """Blocks that some table holds."""
        return self.num_blocks - self.num_available

    def open(self, namespace: bytes = NO_NAMESPACE) -> BlockTable:
        """An empty table. namespace: of the prompts that it may share blocks with."""
        table = BlockTable(namespace)
        self._tables.add(table)
        return table

    def resize(self, table: BlockTable, num_tokens: int) -> bool:
        """Make the table as long as `num_tokens` need, no longer. False where there is no room: nothing has changed."""
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
        """Give everything back. Blocks of the index stay findable until they are needed, those of a prompt's beginning
        longest. The table is dead afterwards."""
        self._tables.remove(table)
        while table.num_blocks:
            self._drop(table.pop())
        table.num_hashed = 0

    def find(self, table: BlockTable, tokens: IntArray) -> int:
        """Lengthen a table of whole known blocks by those in the index that hold the next of `tokens`; the blocks
        found."""
        if self._index is None or table.num_hashed < table.num_blocks:
            return 0
        found = 0
        for digest in self._digests(table, tokens):
            block = self._index.find(digest)
            if block is None:
                break
            self._hold(block)
            table.append(block)
            table.digest, table.num_hashed = digest, table.num_hashed + 1
            found += 1
        return found

    def publish(self, table: BlockTable, tokens: IntArray) -> None:
        """Let the table's full blocks be found by the tokens they hold, or will after the next forward. `tokens` are
        the sequence's first ones."""
        if self._index is None or len(tokens) // BLOCK_LEN == table.num_hashed:
            return
        for digest in self._digests(table, tokens):
            self._index.add(digest, int(table.blocks[table.num_hashed]))
            table.digest, table.num_hashed = digest, table.num_hashed + 1

    def forget(self) -> None:
        """Nothing that nobody holds can be found any longer."""
        while self._idle:
            block, _ = self._idle.popitem()
            assert self._index is not None, "only what the index knows is idle"
            self._index.remove(block)
            self._free.append(block)

    def fork(self, table: BlockTable, num_tokens: int) -> BlockTable | None:
        """A table that shares the full blocks of the first `num_tokens`; None where there is no room. A partly filled
        block is its own: its rows are the caller's to copy."""
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
            assert all(block in self._index for block in self._idle), "an idle block that cannot be found"
            assert not any(block in self._index for block in self._free), "a free block that can be found"

    def _digests(self, table: BlockTable, tokens: IntArray) -> Iterator[bytes]:
        """Of the full blocks of `tokens` that follow the table's known ones."""
        digest = table.digest
        for start in range(table.num_hashed * BLOCK_LEN, len(tokens) - BLOCK_LEN + 1, BLOCK_LEN):
            digest = block_digest(digest, tokens[start : start + BLOCK_LEN])
            yield digest

    def _take(self) -> int:
        """A block nobody holds: one without content first, else the one that was used longest ago."""
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
        if self._index is not None and block in self._index:
            self._idle[block] = None
        else:
            self._free.append(block)
