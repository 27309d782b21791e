"""One step's rows: the trees and prompt chunks of several requests, packed side by side.

Pure numpy; knows nothing of models or tensors. A plain decode is a tree of one node, a prefill chunk a
causal chain.
Invariant: a row's position is its request's committed length plus its depth, whatever its index.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numba as nb
import numpy as np
from numpy.typing import NDArray

from decoding.cache.block_pool import BLOCK_LEN
from decoding.cache.kv_store import KvRows, KvStore
from decoding.core.tree import IntArray

# Shape suffixes: M rows of the step, R rows that need logits, B segments (one per request), W words of ancestor bits,
# P rows of the segments' trees: M, and those that an earlier forward of the same trees has written; T blocks of the
# segments' tables, one table after the other.
LogitRows = Literal["all", "last", "none"] | int
BITS_PER_WORD = 64


@dataclass(frozen=True, slots=True)
class Segment:
    """What one request brings to a step.

    tokens: int32 [n]; parents: int32 [w + n], local to the segment, -1 for what follows the committed tokens,
    `parents[i] < i`; None is a causal chain. num_written: w, the first rows of a tree that grows over several
    forwards, whose keys and values the store has already. logits: which rows need logits; a number asks for that
    many last rows.
    """

    rows: KvRows
    tokens: IntArray
    parents: IntArray | None = None
    logits: LogitRows = "all"
    num_written: int = 0


@dataclass(frozen=True, slots=True)
class StepBatch:
    """The packed step: rows of `store`. Row i of segment b is row `offsets[b] + i`.

    If b asked for all logits, that row's are at `logit_offsets[b] + i`.

    blocks_T: int32, the blocks that hold a segment's committed rows and its tree; table_offsets: int32 [B+1] into them.
    ids_M, positions_M: int64. offsets: int32 [B+1], rows. parents_P: int32, local to the segment, and positions_P:
    int64, of whole trees; tree_offsets: int32 [B+1] into them; num_written: int32 [B], the rows of each tree that
    come before the step's. prefix_lens: int32 [B], committed tokens. is_chain: bool [B], every row's parent is the
    row before. write_slots_M: int64. logit_rows_R: int64, ascending; logit_offsets: int32 [B+1] into them.
    """

    store: KvStore
    blocks_T: IntArray
    table_offsets: IntArray
    ids_M: NDArray[np.int64]
    positions_M: NDArray[np.int64]
    offsets: IntArray
    parents_P: IntArray
    positions_P: NDArray[np.int64]
    tree_offsets: IntArray
    num_written: IntArray
    prefix_lens: IntArray
    is_chain: NDArray[np.bool_]
    write_slots_M: NDArray[np.int64]
    logit_rows_R: NDArray[np.int64]
    logit_offsets: IntArray

    @property
    def num_tokens(self) -> int:
        return len(self.ids_M)

    @property
    def num_segments(self) -> int:
        return len(self.prefix_lens)

    def num_keys(self, segment: int) -> int:
        """Committed tokens and tree rows of a segment: what its rows may see at most."""
        tree_size = self.tree_offsets[segment + 1] - self.tree_offsets[segment]
        return int(self.prefix_lens[segment] + tree_size)

    def blocks(self, segment: int) -> IntArray:
        """int32: the blocks of a segment's keys."""
        return self.blocks_T[self.table_offsets[segment] : self.table_offsets[segment + 1]]

    def ancestor_bits(self, segment: int) -> NDArray[np.uint64]:
        """uint64 [w + n, W]: bit j of row i is set when row j of the segment's tree is i or an ancestor of i."""
        parents = self.parents_P[self.tree_offsets[segment] : self.tree_offsets[segment + 1]]
        bits: NDArray[np.uint64] = ancestor_bits(parents)
        return bits


def pack(segments: Sequence[Segment], store: KvStore) -> StepBatch:
    """Lay the segments side by side. Their tables must have room for their rows."""
    assert segments
    num_segments = len(segments)
    tables = Tables(
        offsets=np.zeros(num_segments + 1, np.int32),
        tree_offsets=np.zeros(num_segments + 1, np.int32),
        logit_offsets=np.zeros(num_segments + 1, np.int32),
        table_offsets=np.zeros(num_segments + 1, np.int32),
        prefix_lens=np.empty(num_segments, np.int32),
        num_written=np.empty(num_segments, np.int32),
        is_chain=np.empty(num_segments, np.bool_),
    )
    for place, segment in enumerate(segments):
        num_rows, num_written = len(segment.tokens), segment.num_written
        tables.offsets[place + 1] = tables.offsets[place] + num_rows
        tables.tree_offsets[place + 1] = tables.tree_offsets[place] + num_written + num_rows
        tables.logit_offsets[place + 1] = tables.logit_offsets[place] + _num_logits(segment.logits, num_rows)
        tables.table_offsets[place + 1] = tables.table_offsets[place] + segment.rows.table.num_blocks
        tables.prefix_lens[place] = segment.rows.length
        tables.num_written[place] = num_written
        tables.is_chain[place] = segment.parents is None
        assert num_written + num_rows <= segment.rows.room, (num_written, num_rows, segment.rows)
        assert num_written == 0 or segment.parents is not None, "a chain grows by committing it"
    ids_M = _join([segment.tokens for segment in segments]).astype(np.int64)
    parents = [segment.tokens if segment.parents is None else segment.parents for segment in segments]
    parents_P = _join(parents).astype(np.int32)
    positions_M, positions_P = np.empty(len(ids_M), np.int64), np.empty(len(parents_P), np.int64)
    write_slots_M, logit_rows_R = np.empty(len(ids_M), np.int64), np.empty(tables.logit_offsets[-1], np.int64)
    blocks_T = _join([segment.rows.table.blocks for segment in segments])
    _fill_rows(tables, Rows(blocks_T, parents_P, positions_P, positions_M, write_slots_M, logit_rows_R))
    return StepBatch(
        store=store,
        blocks_T=blocks_T,
        table_offsets=tables.table_offsets,
        ids_M=ids_M,
        positions_M=positions_M,
        offsets=tables.offsets,
        parents_P=parents_P,
        positions_P=positions_P,
        tree_offsets=tables.tree_offsets,
        num_written=tables.num_written,
        prefix_lens=tables.prefix_lens,
        is_chain=tables.is_chain,
        write_slots_M=write_slots_M,
        logit_rows_R=logit_rows_R,
        logit_offsets=tables.logit_offsets,
    )


class Tables(NamedTuple):
    """What `pack` knows of each segment before its rows are filled in; fields as in `StepBatch`."""

    offsets: IntArray
    tree_offsets: IntArray
    logit_offsets: IntArray
    table_offsets: IntArray
    prefix_lens: IntArray
    num_written: IntArray
    is_chain: NDArray[np.bool_]


class Rows(NamedTuple):
    """The arrays that `pack` fills, but for `blocks_T` and the parents of trees, which are known; as in `StepBatch`."""

    blocks_T: IntArray
    parents_P: IntArray
    positions_P: NDArray[np.int64]
    positions_M: NDArray[np.int64]
    write_slots_M: NDArray[np.int64]
    logit_rows_R: NDArray[np.int64]


def _num_logits(logits: LogitRows, num_rows: int) -> int:
    return logits if isinstance(logits, int) else {"all": num_rows, "last": 1, "none": 0}[logits]


def _join(arrays: list[IntArray]) -> IntArray:
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


@nb.njit(cache=True)
def _fill_rows(tables: Tables, rows: Rows) -> None:
    """Positions, parents of chains, slots and logit rows; finds the trees that are chains."""
    for segment in range(len(tables.prefix_lens)):
        first, end = tables.tree_offsets[segment], tables.tree_offsets[segment + 1]
        prefix_len, num_written = tables.prefix_lens[segment], tables.num_written[segment]
        given_as_chain, chain = tables.is_chain[segment], True
        for node in range(first, end):
            if given_as_chain:
                rows.parents_P[node] = node - first - 1
            parent = rows.parents_P[node]
            chain = chain and parent == node - first - 1
            rows.positions_P[node] = prefix_len if parent < 0 else rows.positions_P[first + parent] + 1
        tables.is_chain[segment] = chain
        first_row, end_row = tables.offsets[segment], tables.offsets[segment + 1]
        for row in range(first_row, end_row):
            rows.positions_M[row] = rows.positions_P[first + num_written + row - first_row]
            place = prefix_len + num_written + row - first_row
            block = np.int64(rows.blocks_T[tables.table_offsets[segment] + place // BLOCK_LEN])
            rows.write_slots_M[row] = block * BLOCK_LEN + place % BLOCK_LEN
        first_logit = tables.logit_offsets[segment]
        num_logits = tables.logit_offsets[segment + 1] - first_logit
        for place in range(num_logits):
            rows.logit_rows_R[first_logit + place] = end_row - num_logits + place


@nb.njit(cache=True)
def ancestor_bits(parents: IntArray) -> NDArray[np.uint64]:
    """uint64 [n, W] of one segment: the tree mask, 64 rows to a word."""
    num_rows = len(parents)
    bits = np.zeros((num_rows, (num_rows + BITS_PER_WORD - 1) // BITS_PER_WORD), np.uint64)
    for row in range(num_rows):
        if parents[row] >= 0:
            bits[row] = bits[parents[row]]
        bits[row, row // BITS_PER_WORD] |= np.uint64(1) << np.uint64(row % BITS_PER_WORD)
    return bits
