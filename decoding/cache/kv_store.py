"""One model's keys and values in blocks. A row is the key and value of one token.

Owns the tensors. Knows nothing of token ids, attention or who holds a block.
Invariant: row i of a sequence lies in slot `slots_of(blocks, i)`, whether it is committed or of the running step; on a
device it does once `settle` was called, before the next forward.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from decoding.cache.block_pool import BLOCK_LEN, BlockTable
from decoding.cache.kv_format import pack_rows, row_width, unpack_rows
from decoding.cache.mirror import Mirror
from decoding.cache.state_pool import CarriedStates, SequenceState
from decoding.core.layer import LayerSpec
from decoding.core.tree import IntArray
from decoding.kernels.gpu.card import has_kernels
from decoding.kernels.numba_kernel import kernel

# Shape suffixes: P planes (layers of one shape), B blocks, S slots of a block (16), H kv heads, D key width,
# V value width, T rows of a sequence, M rows of a step.

MoveAll = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, int], None]  # as `moves.move_rows`


@dataclass(eq=False, slots=True)
class KvRows:
    """One model's rows of one sequence. length: the committed rows; the running step's rows follow them. state: what
    layers carry after the committed rows; None if the model's layers carry nothing."""

    table: BlockTable
    length: int = 0
    state: SequenceState | None = None

    @property
    def room(self) -> int:
        """How many rows may follow the committed ones."""
        return self.table.capacity - self.length


class KvStore:
    """Keys [B, H, D, S], so that a block's 16 keys fill a vector, and values [B, H, S, V] of each layer. A row has the
    columns of the format that `dtype` names (`kv_format`).

    Layers with the same widths and number of heads share tensors, so that a commit is one compiled call per such group,
    however many layers there are. On the CPU memory pages are touched only when written. On a device the rows that a
    step's commits move are moved together, by `move_all` if it is given, whatever the device. carried: what runs the
    states of layers that carry one, if any do.
    num_spare: further blocks, which are no sequence's. state_dtype: of what layers carry; None: as keys and values.
    """

    def __init__(
        self,
        layers: Sequence[LayerSpec],
        num_blocks: int,
        dtype: torch.dtype,
        device: torch.device,
        carried: CarriedStates | None = None,
        num_spare: int = 0,
        state_dtype: torch.dtype | None = None,
        move_all: MoveAll | None = None,
    ) -> None:
        self.num_blocks = num_blocks
        self.spare_blocks: IntArray = num_blocks + 1 + np.arange(num_spare, dtype=np.int32)
        self.carried = carried
        self.dtype = dtype
        self.state_dtype = state_dtype or dtype
        self.device = device
        self._move_all = move_all or _mover_on(device)
        self._moves: list[NDArray[np.int64]] = []  # of each sequence, source and target slots, not done yet
        self._sent: Mirror | None = None  # they, on their way
        num_all = num_blocks + 1 + num_spare
        shapes = [(layer.num_kv_heads, *_widths(layer, dtype)) for layer in layers]
        self._dims = [(layer.key_dim, layer.value_dim) for layer in layers]
        self._groups = {
            (heads, key_dim, value_dim): (
                _storage((shapes.count(shape), num_all, heads, key_dim, BLOCK_LEN), dtype, device),
                _storage((shapes.count(shape), num_all, heads, BLOCK_LEN, value_dim), dtype, device),
            )
            for shape in sorted(set(shapes))
            for heads, key_dim, value_dim in [shape]
        }
        bits = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.itemsize]
        self._arrays = [  # the same memory for the compiled commit, on the CPU
            (keys_PBHDS.view(bits).numpy(), values_PBHSV.view(bits).numpy())
            for keys_PBHDS, values_PBHSV in self._groups.values()
            if device.type == "cpu" and move_all is None
        ]
        places = [shapes[:place].count(shape) for place, shape in enumerate(shapes)]
        self._planes = [
            (self._groups[shape][0][place], self._groups[shape][1][place])
            for shape, place in zip(shapes, places, strict=True)
        ]

    @property
    def trash_block(self) -> int:
        """An extra block that no table holds: padding is written there."""
        return self.num_blocks

    def planes(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys [B, H, D, S] and values [B, H, S, V] of one layer, contiguous, for kernels that find rows themselves."""
        return self._planes[layer]

    def write(self, layer: int, key_HMD: torch.Tensor, value_HMV: torch.Tensor, slots_M: torch.Tensor) -> None:
        """Store rows of one layer, of any dtype. slots_M: int64, on the store's device."""
        keys_BHDS, values_BHSV = self._planes[layer]
        blocks_M, places_M = slots_M // BLOCK_LEN, slots_M % BLOCK_LEN
        keys_BHDS[blocks_M, :, :, places_M] = pack_rows(key_HMD.transpose(0, 1), self.dtype)
        values_BHSV[blocks_M, :, places_M] = pack_rows(value_HMV.transpose(0, 1), self.dtype)

    def gather(self, layer: int, blocks: torch.Tensor, num_rows: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys [H, T, D] and values [H, T, V], floats, of the first `num_rows` of a table's `blocks`: int64, on the
        store's device."""
        (keys_BHDS, values_BHSV), (key_dim, value_dim) = self._planes[layer], self._dims[layer]
        keys_HTD = keys_BHDS[blocks].permute(1, 0, 3, 2).flatten(1, 2)[:, :num_rows]
        values_HTV = values_BHSV[blocks].transpose(0, 1).flatten(1, 2)[:, :num_rows]
        return unpack_rows(keys_HTD, key_dim), unpack_rows(values_HTV, value_dim)

    def commit(self, rows: KvRows, path: IntArray) -> None:
        """Keep the running step's rows in `path` (ascending, counted from the step's first row); drop the others."""
        num_kept = len(path)
        assert num_kept <= rows.room, (num_kept, rows.room)
        if num_kept and path[-1] != num_kept - 1:  # ascending, so not 0, 1, .. exactly if the last is off
            moved = int(np.argmax(path != np.arange(num_kept)))  # earlier rows lie in their place already
            source = slots_of(rows.table.blocks, path[moved:] + rows.length)
            target = slots_of(rows.table.blocks, np.arange(moved, num_kept) + rows.length)
            self.move(source, target)
        if self.carried is not None and rows.state is not None and num_kept:
            self.carried.commit(rows.state, path)
        rows.length += num_kept

    def commit_all(self, rows: KvRows, num_rows: int) -> None:
        """Keep all rows of the running step, so many, where layers carry nothing."""
        assert num_rows <= rows.room, (num_rows, rows.room)
        assert self.carried is None, "layers that carry a state are told what is kept"
        rows.length += num_rows

    def move(self, source: NDArray[np.int64], target: NDArray[np.int64]) -> None:
        """Copy rows between slots, in order; on a device once `settle` is called."""
        for keys, values in self._arrays:
            _move_rows(keys, values, source, target)
        if not self._arrays:
            self._moves.append(np.stack((source, target), axis=1))

    def settle(self) -> None:
        """Queue the moves of all commits since the last call, before anything reads rows."""
        if not self._moves:
            return
        if self._sent is None:
            self._sent = Mirror(torch.int64, self.device)
        borders = np.cumsum([0, *map(len, self._moves)])
        size = len(borders) + 2 * int(borders[-1])
        np.concatenate((borders, *(moves.ravel() for moves in self._moves)), out=self._sent.begin(size))
        words = self._sent.send(size)
        for keys_PBHDS, values_PBHSV in self._groups.values():
            self._move_all(keys_PBHDS, values_PBHSV, words, len(self._moves))
        self._moves.clear()

    def clear(self) -> None:
        """Fill all blocks with zeros."""
        for group in self._groups.values():
            for tensor in group:
                tensor.zero_()

    @property
    def layout(self) -> str:
        """How a block's bytes lie: the type of its numbers, and of each shape the layers and widths."""
        shapes = [(len(keys), *keys.shape[2:], values.shape[-1]) for keys, values in self._groups.values()]
        return f"{self.dtype} {shapes}"

    @property
    def block_bytes(self) -> int:
        """Of one block in all layers."""
        return sum(tensor[:, 0].nbytes for group in self._groups.values() for tensor in group)

    def read_block(self, block: int, content: NDArray[np.uint8]) -> None:
        """Copy a block of all layers to `content` [block_bytes]. On the CPU alone."""
        for part, numbers in self._parts(block, content):
            part[...] = numbers

    def write_block(self, block: int, content: NDArray[np.uint8]) -> None:
        """Copy `content`, as `read_block` gave it, to a block of all layers. On the CPU alone."""
        for part, numbers in self._parts(block, content):
            numbers[...] = part

    def _parts(self, block: int, content: NDArray[np.uint8]) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
        """Parts of `content`, each with the numbers of the store that belong there."""
        assert self._arrays, "a store on a device"
        start = 0
        for array in chain.from_iterable(self._arrays):
            numbers = array[:, block]
            yield content[start : start + numbers.nbytes].view(array.dtype).reshape(numbers.shape), numbers
            start += numbers.nbytes

    def copy_block(self, source: int, target: int) -> None:
        """Copy the content of one block to another, in all layers."""
        self.settle()
        for keys_PBHDS, values_PBHSV in self._groups.values():
            keys_PBHDS[:, target] = keys_PBHDS[:, source]
            values_PBHSV[:, target] = values_PBHSV[:, source]


def _mover_on(device: torch.device) -> MoveAll:
    if not has_kernels(device):
        return _gather_and_scatter
    from decoding.kernels.gpu.moves import move_rows  # Triton may not be installed elsewhere

    return move_rows


def _gather_and_scatter(
    keys_PBHDS: torch.Tensor, values_PBHSV: torch.Tensor, words: torch.Tensor, num_sequences: int
) -> None:
    """By torch's own operations, of which each is many launches over a large cache."""
    source, target = words[num_sequences + 1 :].view(-1, 2).unbind(1)
    from_block, from_place, to_block, to_place = (
        each for slots in (source, target) for each in (slots // BLOCK_LEN, slots % BLOCK_LEN)
    )
    keys_PBHDS[:, to_block, :, :, to_place] = keys_PBHDS[:, from_block, :, :, from_place]
    values_PBHSV[:, to_block, :, to_place] = values_PBHSV[:, from_block, :, from_place]


def slots_of(blocks: IntArray, rows: NDArray[Any]) -> NDArray[np.int64]:
    """int64: the slots of a table's rows. rows: their indices in the sequence."""
    slots: NDArray[np.int64] = blocks[rows // BLOCK_LEN].astype(np.int64) * BLOCK_LEN + rows % BLOCK_LEN
    return slots


def bytes_per_slot(layers: Sequence[LayerSpec], dtype: torch.dtype) -> int:
    """The bytes of one token's keys and values in all layers."""
    return sum(layer.num_kv_heads * sum(_widths(layer, dtype)) for layer in layers) * dtype.itemsize


def _widths(layer: LayerSpec, dtype: torch.dtype) -> tuple[int, int]:
    """The columns of a stored key and value."""
    return row_width(dtype, layer.key_dim), row_width(dtype, layer.value_dim)


def _storage(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Zeros on a device, where kernels may read padding; on the CPU untouched memory."""
    make = torch.empty if device.type == "cpu" else torch.zeros
    return make(shape, dtype=dtype, device=device)


@kernel
def _move_rows(
    keys_PBHDS: NDArray[Any], values_PBHSV: NDArray[Any], source: NDArray[np.int64], target: NDArray[np.int64]
) -> None:
    """Copy rows in order. `source` ascends and never lies below `target` in its table, so overlaps are safe."""
    num_planes, _, num_heads, key_dim, _ = keys_PBHDS.shape
    for plane in range(num_planes):
        for row in range(len(source)):
            from_block, from_place = source[row] // BLOCK_LEN, source[row] % BLOCK_LEN
            to_block, to_place = target[row] // BLOCK_LEN, target[row] % BLOCK_LEN
            for head in range(num_heads):
                for column in range(key_dim):
                    keys_PBHDS[plane, to_block, head, column, to_place] = keys_PBHDS[
                        plane, from_block, head, column, from_place
                    ]
                values_PBHSV[plane, to_block, head, to_place] = values_PBHSV[plane, from_block, head, from_place]
