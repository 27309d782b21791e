"""One step's metadata on the device, at fixed addresses, so that a captured forward can read it.

A step is written into one pinned block on the host and sent in one copy. Tokens and segments are both padded to a
number that the caller chooses, so that all shapes follow from that number. Invariant: a step's metadata lies in these
tensors, never in Python numbers, so the captured operations fit every step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from decoding.cache.batch import StepBatch
from decoding.cache.block_pool import BLOCK_LEN
from decoding.cache.kv_store import KvStore
from decoding.core.tree import IntArray
from decoding.kernels.cpu.trees import trunk_len
from decoding.kernels.numba_kernel import kernel

# Shape suffixes: T padded tokens, L padded tokens that need logits, B padded segments (as many as tokens), P nodes of
# the segments' trees, C room for block tables, W room for an attention backend's own list.
ALIGNMENT = 4  # int32 numbers: each part begins at a multiple of 16 bytes
ROOM_NAMES = (
    *("tokens", "tokens with logits", "tree nodes", "blocks of tables", "keys of a sequence"),
    *("words of attention's work", "partial sums"),
)


class Work(NamedTuple):
    """What an attention backend makes of a step beside its tensors. words: its own list, int32. num_partials: the
    partial sums that it needs room for, for each head."""

    words: IntArray
    num_partials: int = 0


class WorkRoom(NamedTuple):
    """The most of both."""

    words: int = 0
    partials: int = 0


@dataclass(frozen=True, slots=True)
class StepTensors:
    """All int32. Token t of the step, which belongs to segment b, is node i = num_written[b] + t - first_rows[b] of b's
    tree.

    Node j of a tree is the segment's key lengths[b] + j; key k lies in block blocks[table_offsets[b] + k // 16]. Node i
    sees the committed tokens, and node j of its tree if enters[j] <= enters[i] < leaves[j]: `enters` numbers the nodes
    in preorder, and j's descendants end before leaves[j].

    positions_T: places in the sequence; rotary_T: the positions by which tokens are turned. row_segments_T: each
    token's segment; -1 for padding, whose slots lie in the trash block. logit_rows_L: the tokens that need logits, then
    zeros. lengths_B: committed tokens. trunk_lens_B: the length of a tree's leading chain that all later nodes descend
    from, such as a prompt's chunk and the root. first_rows_B, table_offsets_B, tree_offsets_B: [B + 1]; segments of
    padding are empty. enters_P, leaves_P, tree_positions_P: node j of segment b is at tree_offsets[b] + j. work_W: the
    attention backend's work list; num_partials: its partial sums. most_keys: the most keys of a segment, a multiple of
    16.
    """

    store: KvStore
    most_keys: int
    num_partials: int
    blocks_C: torch.Tensor
    ids_T: torch.Tensor
    positions_T: torch.Tensor
    rotary_T: torch.Tensor
    slots_T: torch.Tensor
    row_segments_T: torch.Tensor
    logit_rows_L: torch.Tensor
    lengths_B: torch.Tensor
    num_written_B: torch.Tensor
    trunk_lens_B: torch.Tensor
    first_rows_B: torch.Tensor
    table_offsets_B: torch.Tensor
    tree_offsets_B: torch.Tensor
    enters_P: torch.Tensor
    leaves_P: torch.Tensor
    tree_positions_P: torch.Tensor
    work_W: torch.Tensor


class HostStep(NamedTuple):
    """The same on the host, for the code that fills it. The two parts of varying length lie at both ends of the block
    (tables end where the rest begins), so that one copy sends all used numbers and no part ever moves."""

    blocks_C: IntArray
    ids_T: IntArray
    positions_T: IntArray
    rotary_T: IntArray
    slots_T: IntArray
    row_segments_T: IntArray
    logit_rows_T: IntArray
    lengths_B: IntArray
    num_written_B: IntArray
    trunk_lens_B: IntArray
    first_rows_B: IntArray
    table_offsets_B: IntArray
    tree_offsets_B: IntArray
    enters_P: IntArray
    leaves_P: IntArray
    tree_positions_P: IntArray
    work_W: IntArray


class Packed(NamedTuple):
    """The fields of a `StepBatch` that are written into a `HostStep`."""

    ids_M: NDArray[np.int64]
    positions_M: NDArray[np.int64]
    rotary_M: NDArray[np.int64]
    write_slots_M: NDArray[np.int64]
    logit_rows_R: NDArray[np.int64]
    prefix_lens: IntArray
    num_written: IntArray
    offsets: IntArray
    table_offsets: IntArray
    tree_offsets: IntArray
    parents_P: IntArray
    positions_P: NDArray[np.int64]
    blocks_T: IntArray


class StepRoom(NamedTuple):
    """The sizes of buffers: tokens of a step, those that need logits, nodes of its trees, blocks of its tables, keys of
    a segment, and what the attention backend makes of it."""

    rows: int
    logits: int
    tree_rows: int
    blocks: int
    keys: int
    work: WorkRoom = WorkRoom()

    def holds(self, batch: StepBatch, work: Work) -> bool:
        """Whether a step fits."""
        return not self.shortages(batch, work)

    def shortages(self, batch: StepBatch, work: Work) -> list[str]:
        """Of what a step needs more than there is room for, in words."""
        needed = room_of(batch, work)
        sizes = zip(ROOM_NAMES, (*needed[:-1], *needed.work), (*self[:-1], *self.work), strict=True)
        return [f"{count} {name} where {most} have room" for name, count, most in sizes if count > most]


def room_of(batch: StepBatch, work: Work) -> StepRoom:
    """The sizes that one step needs."""
    most_keys = int((batch.prefix_lens + np.diff(batch.tree_offsets)).max())
    own = WorkRoom(len(work.words), work.num_partials)
    num_logits = len(batch.logit_rows_R)
    return StepRoom(batch.num_tokens, num_logits, len(batch.positions_P), len(batch.blocks_T), most_keys, own)


class StepBuffers:
    """Buffers for one step at a time. store: of the keys and values.

    For a CUDA device the host's block is pinned, and is not overwritten before its last copy is done.
    """

    def __init__(self, store: KvStore, room: StepRoom) -> None:
        self.room = room
        self._store = store
        self._most_keys = -(-room.keys // BLOCK_LEN) * BLOCK_LEN
        lengths = [room.blocks, *[room.rows] * 9, *[room.rows + 1] * 3, *[room.tree_rows] * 3, room.work.words]
        self._lengths = [-(-length // ALIGNMENT) * ALIGNMENT for length in lengths]
        is_cuda = store.device.type == "cuda"
        self._host = torch.zeros(sum(self._lengths), dtype=torch.int32, pin_memory=is_cuda)
        self._device = torch.zeros(sum(self._lengths), dtype=torch.int32, device=store.device)
        self._copied = torch.cuda.Event() if is_cuda else None  # type: ignore[no-untyped-call]
        self._step = HostStep(*(part.numpy() for part in torch.split(self._host, self._lengths)))
        self._views: dict[int, StepTensors] = {}

    def stage(self, batch: StepBatch, num_rows: int, work: Work) -> StepTensors:
        """Settle the store and start the copy of a step to the device, padded to `num_rows`. It must fit; the next step
        overwrites it."""
        if self._copied is not None:
            self._copied.synchronize()
        self._store.settle()
        num_blocks = _fill(self._step, _packed(batch), num_rows, self._store.trash_block * BLOCK_LEN)
        self._step.work_W[: len(work.words)] = work.words
        used = slice(self._lengths[0] - num_blocks, len(self._host) - self._lengths[-1] + len(work.words))
        self._device[used].copy_(self._host[used], non_blocking=True)
        if self._copied is not None:
            self._copied.record()
        step = self.view(num_rows)
        if batch.drawn_B is not None:
            ids_M = step.ids_T[: batch.num_tokens]
            ids_M.copy_(batch.tokens_at(ids_M))
        return step

    def view(self, num_rows: int) -> StepTensors:
        """The tensors of a step that is padded to `num_rows`: the same tensors in each call."""
        view = self._views.get(num_rows)
        if view is None:
            parts = torch.split(self._device, self._lengths)
            *by_row, logit_rows = (part[:num_rows] for part in parts[1:7])
            by_segment = [part[:num_rows] for part in parts[7:10]]
            by_border = [part[: num_rows + 1] for part in parts[10:13]]
            sizes = self._most_keys, self.room.work.partials
            by_row.append(logit_rows[: self.room.logits])
            view = StepTensors(self._store, *sizes, parts[0], *by_row, *by_segment, *by_border, *parts[13:])
            self._views[num_rows] = view
        return view


def _packed(batch: StepBatch) -> Packed:
    turned = batch.rotary_positions  # of time, height and width where a step has pictures, which is not captured
    return Packed(
        batch.ids_M,
        batch.positions_M,
        turned if turned.ndim == 1 else turned[0],
        batch.write_slots_M,
        batch.logit_rows_R,
        batch.prefix_lens,
        batch.num_written,
        batch.offsets,
        batch.table_offsets,
        batch.tree_offsets,
        batch.parents_P,
        batch.positions_P,
        batch.blocks_T,
    )


@kernel
def _fill(step: HostStep, packed: Packed, num_rows: int, trash_slot: int) -> int:
    """Write a step and its padding to `num_rows` tokens and segments; return the length of its block tables."""
    num_tokens, num_segments, num_logits = len(packed.ids_M), len(packed.prefix_lens), len(packed.logit_rows_R)
    for row in range(num_rows):
        is_real = row < num_tokens
        step.ids_T[row] = packed.ids_M[row] if is_real else 0
        step.positions_T[row] = packed.positions_M[row] if is_real else 0
        step.rotary_T[row] = packed.rotary_M[row] if is_real else 0
        step.slots_T[row] = packed.write_slots_M[row] if is_real else trash_slot + row % BLOCK_LEN
        step.row_segments_T[row] = -1
        step.logit_rows_T[row] = packed.logit_rows_R[row] if row < num_logits else 0
    first_block = len(step.blocks_C) - len(packed.blocks_T)
    step.blocks_C[first_block:] = packed.blocks_T
    for border in range(num_rows + 1):
        place = min(border, num_segments)
        step.first_rows_B[border] = packed.offsets[place]
        step.table_offsets_B[border] = first_block + packed.table_offsets[place]
        step.tree_offsets_B[border] = packed.tree_offsets[place]
    for segment in range(num_rows):
        is_real = segment < num_segments
        step.lengths_B[segment] = packed.prefix_lens[segment] if is_real else 0
        step.num_written_B[segment] = packed.num_written[segment] if is_real else 0
        step.trunk_lens_B[segment] = 0
    for segment in range(num_segments):
        _fill_segment(step, packed, segment)
    return len(packed.blocks_T)


@kernel
def _fill_segment(step: HostStep, packed: Packed, segment: int) -> None:
    """Write the segment's number for its tokens, and its tree: trunk, positions and preorder."""
    step.row_segments_T[packed.offsets[segment] : packed.offsets[segment + 1]] = segment
    first, end = packed.tree_offsets[segment], packed.tree_offsets[segment + 1]
    parents, size = packed.parents_P[first:end], end - first
    step.tree_positions_P[first:end] = packed.positions_P[first:end]
    step.trunk_lens_B[segment] = trunk_len(parents)
    enters, leaves = step.enters_P[first:end], step.leaves_P[first:end]
    leaves[:] = 1  # holds the sizes of subtrees until the last loop
    for node in range(size - 1, 0, -1):
        if parents[node] >= 0:
            leaves[parents[node]] += leaves[node]
    following = np.empty(size + 1, np.int32)  # the preorder number of each node's next child; last: of the next root
    following[size] = 0
    for node in range(size):
        parent = parents[node] if parents[node] >= 0 else size
        enters[node] = following[parent]
        following[parent] += leaves[node]
        following[node] = enters[node] + 1
        leaves[node] += enters[node]
