"""The packed tokens of one step: trees and prompt chunks of several requests, side by side.

Pure numpy; knows nothing of models or tensors. A plain decode is a tree of one node, a prefill chunk a
causal chain.
Invariant: a token's position is its request's committed length plus its depth in the tree, whatever its index.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from decoding.cache.block_pool import BLOCK_LEN
from decoding.cache.kv_store import KvRows, KvStore
from decoding.cache.state_pool import SequenceState
from decoding.core.picture import RotaryPositions, Span
from decoding.core.tree import IntArray
from decoding.kernels.numba_kernel import kernel

# Shape suffixes: M tokens of the step, R tokens that need logits, B segments (one per request), W words of ancestor
# bits, P nodes of the segments' trees (the step's tokens, and nodes that an earlier forward of the same tree wrote),
# E model width, N neighbouring tokens, T blocks of the segments' tables, one table after the other.
LogitRows = Literal["all", "last", "none"] | int
BITS_PER_WORD = 64


class EmbeddedRows(NamedTuple):
    """Neighbouring tokens that have embeddings of their own, rows_NE, on the model's device. first: of these tokens."""

    first: int
    rows_NE: torch.Tensor


def within(embedded: Sequence[EmbeddedRows], start: int, end: int) -> tuple[EmbeddedRows, ...]:
    """Those of the tokens [start, end), counted from `start`."""
    parts = []
    for first, rows_NE in embedded:
        begin, stop = max(first, start), min(first + len(rows_NE), end)
        if begin < stop:
            parts.append(EmbeddedRows(begin - start, rows_NE[begin - first : stop - first]))
    return tuple(parts)


class Segment(NamedTuple):
    """One request's part of a step. rows: where its keys and values lie.

    tokens: int32 [n]; parents: int32 [w + n], local to the segment, -1 for a node that follows the committed tokens,
    `parents[i] < i`; None is a causal chain. num_written: w, for a tree that grows over several forwards: the store has
    the keys and values of its first w nodes already. logits: which tokens need logits; a number asks for that many
    last tokens. num_certain: how many of its first tokens, a chain, every commit keeps; None are all of a chain, and
    the root of a tree. embedded: of its tokens, those that have embeddings of their own. rotary: None where positions
    are places. joint: places of tokens that see each other in both directions, of which a step has all or none.
    """

    rows: KvRows
    tokens: IntArray
    parents: IntArray | None = None
    logits: LogitRows = "all"
    num_written: int = 0
    num_certain: int | None = None
    embedded: tuple[EmbeddedRows, ...] = ()
    rotary: RotaryPositions | None = None
    joint: tuple[Span, ...] = ()


class CarriedSegment(NamedTuple):
    """state: of the segment's sequence. num_certain: as of `Segment`."""

    state: SequenceState
    num_certain: int


class JointTokens(NamedTuple):
    """Tokens that see each other in both directions. span: of the places of a segment's sequence."""

    segment: int
    span: Span


@dataclass(frozen=True, slots=True)
class StepBatch:
    """The packed step, whose keys and values go to `store`. Token i of segment b is token `offsets[b] + i` of the step.

    If b asked for all logits, that token's logits are at `logit_offsets[b] + i`.

    blocks_T: int32, the blocks that hold a segment's committed tokens and its tree; table_offsets: int32 [B+1] into
    them. ids_M, positions_M: int64. offsets: int32 [B+1] into the tokens. parents_P (int32, local to the segment) and
    positions_P (int64) describe whole trees; tree_offsets: int32 [B+1] into them; num_written: int32 [B], the nodes of
    each tree that come before the step's tokens. prefix_lens: int32 [B], committed tokens. is_chain: bool [B], every
    node's parent is the node before. write_slots_M: int64. logit_rows_R: int64, the tokens that need logits, ascending;
    logit_offsets: int32 [B+1] into them. carried: of each segment, where the model's layers carry a state. embedded: of
    the step's tokens, those that have embeddings of their own. turned: see `rotary_positions`. drawn_B: int32, on the
    device, tokens that the host does not know yet: where it is given, ids_M are places in it.
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
    carried: tuple[CarriedSegment, ...] = ()
    embedded: tuple[EmbeddedRows, ...] = ()
    turned: NDArray[np.int64] | None = None
    joint: tuple[JointTokens, ...] = ()
    drawn_B: torch.Tensor | None = None

    @property
    def num_tokens(self) -> int:
        return len(self.ids_M)

    def tokens_at(self, places_M: torch.Tensor) -> torch.Tensor:
        """int32, on the device: the tokens of `drawn_B` at its places. What could not be drawn is negative there, and
        any token here: nobody is given what follows it."""
        assert self.drawn_B is not None, "tokens that the host knows"
        return self.drawn_B.index_select(0, places_M).clamp_(min=0)

    @property
    def rotary_positions(self) -> NDArray[np.int64]:
        """int64 [M], by which tokens are turned; [3, M] of time, height and width where those of a token differ."""
        return self.positions_M if self.turned is None else self.turned

    @property
    def num_segments(self) -> int:
        return len(self.prefix_lens)

    def num_keys(self, segment: int) -> int:
        """A segment's committed tokens and tree nodes: the most keys that a token of it may see."""
        tree_size = self.tree_offsets[segment + 1] - self.tree_offsets[segment]
        return int(self.prefix_lens[segment] + tree_size)

    def blocks(self, segment: int) -> IntArray:
        """int32: the blocks that hold a segment's keys."""
        return self.blocks_T[self.table_offsets[segment] : self.table_offsets[segment + 1]]

    def ancestor_bits(self, segment: int) -> NDArray[np.uint64]:
        """uint64 [w + n, W]: bit j of row i is set if node j of the segment's tree is i or an ancestor of i."""
        parents = self.parents_P[self.tree_offsets[segment] : self.tree_offsets[segment + 1]]
        bits: NDArray[np.uint64] = ancestor_bits(parents)
        return bits


def pack(segments: Sequence[Segment], store: KvStore) -> StepBatch:
    """Pack the segments side by side. Each block table must have room for its segment's tokens."""
    assert segments
    columns = np.array([_numbers_of(segment) for segment in segments], np.int32).T.copy()
    sizes, (prefix_lens, num_written, is_chain) = columns[:4], columns[4:]
    borders = np.zeros((4, len(segments) + 1), np.int32)
    np.cumsum(sizes, axis=1, out=borders[:, 1:])
    num_tree, num_blocks = sizes[1], sizes[3]
    has_room = num_tree <= num_blocks * BLOCK_LEN - prefix_lens
    assert has_room.all(), (num_tree, num_blocks, prefix_lens)
    offsets, tree_offsets, logit_offsets, table_offsets = borders
    is_chain = is_chain.astype(np.bool_)
    tables = Tables(offsets, tree_offsets, logit_offsets, table_offsets, prefix_lens, num_written, is_chain)
    ids_M = _join([segment.tokens for segment in segments]).astype(np.int64)
    parents = [segment.tokens if segment.parents is None else segment.parents for segment in segments]
    parents_P = _join(parents).astype(np.int32)
    positions_M, positions_P = np.empty(len(ids_M), np.int64), np.empty(len(parents_P), np.int64)
    write_slots_M, logit_rows_R = np.empty(len(ids_M), np.int64), np.empty(tables.logit_offsets[-1], np.int64)
    blocks_T = _join([segment.rows.table.blocks for segment in segments])
    _fill_tokens(tables, TokenArrays(blocks_T, parents_P, positions_P, positions_M, write_slots_M, logit_rows_R))
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
        carried=() if store.carried is None else tuple(map(_carried, segments)),
        embedded=tuple(
            EmbeddedRows(int(offset) + first, rows_NE)
            for segment, offset in zip(segments, tables.offsets, strict=False)
            for first, rows_NE in segment.embedded
        ),
        turned=_turned(segments, offsets, positions_M),
        joint=tuple(
            JointTokens(number, span)
            for number, segment in enumerate(segments)
            for span in segment.joint
            if segment.rows.length <= span.first < segment.rows.length + len(segment.tokens)
        ),
    )


def _turned(segments: Sequence[Segment], offsets: IntArray, positions_M: NDArray[np.int64]) -> NDArray[np.int64] | None:
    if all(segment.rotary is None for segment in segments):
        return None
    turned_3M = np.tile(positions_M, (3, 1))
    for segment, first, end in zip(segments, offsets[:-1], offsets[1:], strict=True):
        if segment.rotary is not None:
            turned_3M[:, first:end] = segment.rotary.at(positions_M[first:end])
    return turned_3M if (turned_3M != turned_3M[0]).any() else turned_3M[0]


def _carried(segment: Segment) -> CarriedSegment:
    assert segment.rows.state is not None, "a sequence of a model whose layers carry a state"
    assert segment.num_written == 0, "a tree of such a model is run in one forward"
    num_certain = segment.num_certain
    if num_certain is None:
        num_certain = len(segment.tokens) if segment.parents is None else 1
    return CarriedSegment(segment.rows.state, num_certain)


class Tables(NamedTuple):
    """Per-segment fields of a `StepBatch`, which `pack` knows before it fills in those of tokens."""

    offsets: IntArray
    tree_offsets: IntArray
    logit_offsets: IntArray
    table_offsets: IntArray
    prefix_lens: IntArray
    num_written: IntArray
    is_chain: NDArray[np.bool_]


class TokenArrays(NamedTuple):
    """Per-token fields of a `StepBatch`. Given: `blocks_T` and the parents of trees; `_fill_tokens` writes the rest."""

    blocks_T: IntArray
    parents_P: IntArray
    positions_P: NDArray[np.int64]
    positions_M: NDArray[np.int64]
    write_slots_M: NDArray[np.int64]
    logit_rows_R: NDArray[np.int64]


def _numbers_of(segment: Segment) -> tuple[int, ...]:
    """Tokens, nodes of the tree, logits, blocks; committed tokens, nodes that are written, whether it is a chain."""
    rows, tokens, parents, logits, num_written, *_ = segment
    num_tokens = len(tokens)
    if not isinstance(logits, int):
        logits = {"all": num_tokens, "last": 1, "none": 0}[logits]
    assert num_written == 0 or parents is not None, "a chain grows by committing it"
    return (
        num_tokens,
        num_written + num_tokens,
        logits,
        rows.table.num_blocks,
        rows.length,
        num_written,
        parents is None,
    )


def _join(arrays: list[IntArray]) -> IntArray:
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


@kernel
def _fill_tokens(tables: Tables, arrays: TokenArrays) -> None:
    """Fill positions, parents of chains, slots and logit rows; set `is_chain` of trees that are chains too."""
    for segment in range(len(tables.prefix_lens)):
        first, end = tables.tree_offsets[segment], tables.tree_offsets[segment + 1]
        prefix_len, num_written = tables.prefix_lens[segment], tables.num_written[segment]
        given_as_chain, chain = tables.is_chain[segment], True
        for node in range(first, end):
            if given_as_chain:
                arrays.parents_P[node] = node - first - 1
            parent = arrays.parents_P[node]
            chain = chain and parent == node - first - 1
            arrays.positions_P[node] = prefix_len if parent < 0 else arrays.positions_P[first + parent] + 1
        tables.is_chain[segment] = chain
        first_token, end_token = tables.offsets[segment], tables.offsets[segment + 1]
        for token in range(first_token, end_token):
            arrays.positions_M[token] = arrays.positions_P[first + num_written + token - first_token]
            place = prefix_len + num_written + token - first_token
            block = np.int64(arrays.blocks_T[tables.table_offsets[segment] + place // BLOCK_LEN])
            arrays.write_slots_M[token] = block * BLOCK_LEN + place % BLOCK_LEN
        first_logit = tables.logit_offsets[segment]
        num_logits = tables.logit_offsets[segment + 1] - first_logit
        for place in range(num_logits):
            arrays.logit_rows_R[first_logit + place] = end_token - num_logits + place


@kernel
def ancestor_bits(parents: IntArray) -> NDArray[np.uint64]:
    """uint64 [n, W]: one segment's tree mask, 64 nodes to a word."""
    num_nodes = len(parents)
    bits = np.zeros((num_nodes, (num_nodes + BITS_PER_WORD - 1) // BITS_PER_WORD), np.uint64)
    for node in range(num_nodes):
        if parents[node] >= 0:
            bits[node] = bits[parents[node]]
        bits[node, node // BITS_PER_WORD] |= np.uint64(1) << np.uint64(node % BITS_PER_WORD)
    return bits
