"""One step's rows: the trees and prompt chunks of several requests, packed side by side.

Pure numpy; knows nothing of models or tensors. A plain decode is a tree of one node, a prefill chunk a
causal chain.
Invariant: a row's position is its request's committed length plus its depth, whatever its index.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numba as nb
import numpy as np
from numpy.typing import NDArray

from decoding.kv_store import KvHandle, KvStore
from decoding.tree import IntArray

# Shape suffixes: M rows of the step, R rows that need logits, B segments (one per request), W words of ancestor bits.
LogitRows = Literal["all", "last", "none"] | int
BITS_PER_WORD = 64


@dataclass(frozen=True, slots=True)
class Segment:
    """What one request brings to a step.

    tokens: int32 [n]; parents: int32 [n], local to the segment, -1 for the first, `parents[i] < i`; None
    is a causal chain. logits: which rows need logits; a number asks for that many last rows.
    """

    handle: KvHandle
    tokens: IntArray
    parents: IntArray | None = None
    logits: LogitRows = "all"


@dataclass(frozen=True, slots=True)
class StepBatch:
    """The packed step: rows of `store`. Row i of segment b is row `offsets[b] + i`.

    If b asked for all logits, that row's are at `logit_offsets[b] + i`.

    ids_M, positions_M: int64. parents_M: int32, local to the segment. offsets: int32 [B+1], rows.
    prefix_lens: int32 [B], committed tokens. is_chain: bool [B], every row's parent is the row before.
    write_slots_M: int64. logit_rows_R: int64, ascending; logit_offsets: int32 [B+1] into them.
    """

    store: KvStore
    handles: tuple[KvHandle, ...]
    ids_M: NDArray[np.int64]
    positions_M: NDArray[np.int64]
    parents_M: IntArray
    offsets: IntArray
    prefix_lens: IntArray
    is_chain: NDArray[np.bool_]
    write_slots_M: NDArray[np.int64]
    logit_rows_R: NDArray[np.int64]
    logit_offsets: IntArray

    @property
    def num_rows(self) -> int:
        return len(self.ids_M)

    @property
    def num_segments(self) -> int:
        return len(self.handles)

    def ancestor_bits(self, segment: int) -> NDArray[np.uint64]:
        """uint64 [n, W]: bit j of row i is set when row j of the segment is i or an ancestor of i."""
        parents = self.parents_M[self.offsets[segment] : self.offsets[segment + 1]]
        bits: NDArray[np.uint64] = ancestor_bits(parents)
        return bits


def pack(segments: Sequence[Segment], store: KvStore) -> StepBatch:
    """Lay the segments side by side. Rows not yet reserved in `store` are reserved here; there must be room."""
    assert segments
    num_segments = len(segments)
    offsets, logit_offsets = np.zeros(num_segments + 1, np.int32), np.zeros(num_segments + 1, np.int32)
    prefix_lens = np.empty(num_segments, np.int32)
    modes = np.empty(num_segments, np.int8)
    slots: list[NDArray[np.int64]] = []
    for place, segment in enumerate(segments):
        handle, num_rows = segment.handle, len(segment.tokens)
        offsets[place + 1] = offsets[place] + num_rows
        prefix_lens[place] = handle.length
        num_logits = _num_logits(segment.logits, num_rows)
        logit_offsets[place + 1] = logit_offsets[place] + num_logits
        modes[place] = segment.parents is None
        reserved = handle.reserved if len(handle.reserved) == num_rows else store.reserve(handle, num_rows)
        assert reserved is not None, "no room for a segment that was not reserved"
        slots.append(reserved)
    parents = [segment.tokens if segment.parents is None else segment.parents for segment in segments]
    return _fill(
        store,
        tuple(segment.handle for segment in segments),
        _join([segment.tokens for segment in segments]).astype(np.int64),
        _join(parents).astype(np.int32),
        slots[0] if num_segments == 1 else np.concatenate(slots),
        (offsets, logit_offsets, prefix_lens, modes.view(np.bool_)),
    )


def _num_logits(logits: LogitRows, num_rows: int) -> int:
    return logits if isinstance(logits, int) else {"all": num_rows, "last": 1, "none": 0}[logits]


_Tables = tuple[IntArray, IntArray, IntArray, NDArray[np.bool_]]


def _fill(
    store: KvStore,
    handles: tuple[KvHandle, ...],
    ids_M: NDArray[np.int64],
    parents_M: IntArray,
    write_slots_M: NDArray[np.int64],
    tables: _Tables,
) -> StepBatch:
    offsets, logit_offsets, prefix_lens, is_chain = tables
    positions_M = np.empty(len(ids_M), np.int64)
    logit_rows_R = np.empty(logit_offsets[-1], np.int64)
    _fill_rows(parents_M, offsets, logit_offsets, prefix_lens, is_chain, positions_M, logit_rows_R)
    return StepBatch(
        store=store,
        handles=handles,
        ids_M=ids_M,
        positions_M=positions_M,
        parents_M=parents_M,
        offsets=offsets,
        prefix_lens=prefix_lens,
        is_chain=is_chain,
        write_slots_M=write_slots_M,
        logit_rows_R=logit_rows_R,
        logit_offsets=logit_offsets,
    )


def _join(arrays: list[IntArray]) -> IntArray:
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


@nb.njit(cache=True)
def _fill_rows(
    parents_M: IntArray,
    offsets: IntArray,
    logit_offsets: IntArray,
    prefix_lens: IntArray,
    is_chain: NDArray[np.bool_],
    positions_M: NDArray[np.int64],
    logit_rows_R: NDArray[np.int64],
) -> None:
    """Positions, parents of chains and logit rows; finds the trees that are chains."""
    for segment in range(len(prefix_lens)):
        first, end = offsets[segment], offsets[segment + 1]
        given_as_chain, chain = is_chain[segment], True
        for row in range(first, end):
            if given_as_chain:
                parents_M[row] = row - first - 1
            parent = parents_M[row]
            chain = chain and parent == row - first - 1
            positions_M[row] = prefix_lens[segment] if parent < 0 else positions_M[first + parent] + 1
        is_chain[segment] = chain
        num_logits = logit_offsets[segment + 1] - logit_offsets[segment]
        for place in range(num_logits):
            logit_rows_R[logit_offsets[segment] + place] = end - num_logits + place


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
