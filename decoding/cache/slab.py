"""The slab: the KV layout of the CPU, a contiguous range of one arena for each request.

Knows nothing of tokens or attention.
Invariant: the ranges of live handles are disjoint, and together with the free ranges cover the arena.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numba as nb
import numpy as np
import torch
from numpy.typing import NDArray

from decoding.cache.store import NO_SLOTS, KvHandle, SlotArray
from decoding.core.layer import LayerSpec

# Shape suffixes: P planes (K or V of one layer), R planes times heads, H kv heads, S slots, D head width,
# M rows of a step.
READ_AHEAD = 16  # rows past the arena's end that vector kernels may read


class SlabStore:
    """One arena of `total` slots; each request owns a contiguous range of them.

    Layers of equal width and head count share one tensor [P, H, S, D], so that a commit is one compiled
    call per such group however many layers there are. Pages are touched only when written.
    """

    def __init__(self, layers: Sequence[LayerSpec], num_slots: int, dtype: torch.dtype) -> None:
        self.total = num_slots
        self.dtype = dtype
        self._groups, self._planes = _planes(layers, num_slots, dtype)
        self._free: list[tuple[int, int]] = [(0, num_slots)]  # (start, size), ascending, never adjacent
        self._live: dict[int, KvHandle] = {}  # by start

    @property
    def used(self) -> int:
        return self.total - sum(size for _, size in self._free)

    def allocate(self, max_tokens: int) -> KvHandle | None:
        assert max_tokens >= 1, max_tokens
        for place, (start, size) in enumerate(self._free):
            if size >= max_tokens:
                rest = [(start + max_tokens, size - max_tokens)] if size > max_tokens else []
                self._free[place : place + 1] = rest
                handle = KvHandle(capacity=max_tokens, start=start)
                self._live[start] = handle
                return handle
        return None

    def reserve(self, handle: KvHandle, num_rows: int, num_kept: int = 0) -> SlotArray | None:
        assert num_kept <= len(handle.reserved), (num_kept, len(handle.reserved))
        if handle.length + num_kept + num_rows > handle.capacity:
            return None
        first = handle.start + handle.length
        handle.reserved = np.arange(first, first + num_kept + num_rows)
        return handle.reserved[num_kept:]

    def commit(self, handle: KvHandle, path: NDArray[np.int32]) -> None:
        num_kept = len(path)
        assert num_kept <= len(handle.reserved), (num_kept, len(handle.reserved))
        if num_kept and path[-1] != num_kept - 1:  # ascending, so not 0, 1, .. exactly if the last is off
            first = handle.start + handle.length
            self._move(path.astype(np.int64) + first, np.arange(first, first + num_kept))
        handle.length += num_kept
        handle.reserved = NO_SLOTS

    def free(self, handle: KvHandle) -> None:
        freed = self._live.pop(handle.start)
        assert freed is handle, (freed, handle)
        ranges = sorted([*self._free, (handle.start, handle.capacity)])
        merged = ranges[:1]
        for start, size in ranges[1:]:
            last_start, last_size = merged[-1]
            if last_start + last_size == start:
                merged[-1] = (last_start, last_size + size)
            else:
                merged.append((start, size))
        self._free = merged
        handle.capacity = handle.length = 0
        handle.reserved = NO_SLOTS

    def fork(self, handle: KvHandle, length: int, max_tokens: int | None = None) -> KvHandle | None:
        assert 0 <= length <= handle.length, (length, handle.length)
        copy = self.allocate(max(length, max_tokens or handle.capacity))
        if copy is not None:
            self._move(np.arange(handle.start, handle.start + length), np.arange(copy.start, copy.start + length))
            copy.length = length
        return copy

    def rows(self, handle: KvHandle, num_rows: int) -> slice:
        return slice(handle.start, handle.start + num_rows)

    def write(self, layer: int, key_HMD: torch.Tensor, value_HMD: torch.Tensor, slots_M: torch.Tensor) -> None:
        keys_HSD, values_HSD = self._planes[layer]
        keys_HSD.index_copy_(1, slots_M, key_HMD)
        values_HSD.index_copy_(1, slots_M, value_HMD)

    def gather(self, layer: int, rows: slice | torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        keys_HSD, values_HSD = self._planes[layer]
        return keys_HSD[:, rows], values_HSD[:, rows]

    def planes(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of one layer, each contiguous [H, S, D], for kernels that find rows themselves."""
        return self._planes[layer]

    def check_integrity(self) -> None:
        ranges = sorted([*self._free, *((handle.start, handle.capacity) for handle in self._live.values())])
        cursor = 0
        for start, size in ranges:
            assert start == cursor, ("gap or overlap", start, cursor)
            assert size > 0, (start, size)
            cursor += size
        assert cursor == self.total, (cursor, self.total)
        for (start, size), (next_start, _) in zip(self._free, self._free[1:], strict=False):
            assert start + size < next_start, "free ranges must be coalesced"
        for handle in self._live.values():
            assert 0 <= handle.length + len(handle.reserved) <= handle.capacity, handle

    def _move(self, source: SlotArray, target: SlotArray) -> None:
        for group_RSD in self._groups:
            _move_rows(group_RSD, source, target)


def _planes(
    layers: Sequence[LayerSpec], num_slots: int, dtype: torch.dtype
) -> tuple[list[NDArray[Any]], list[tuple[torch.Tensor, torch.Tensor]]]:
    """One tensor per (heads, width), and every layer's views of its planes."""
    counts: dict[tuple[int, int], int] = {}
    for layer in layers:
        for width in (layer.key_dim, layer.value_dim):
            shape = (layer.num_kv_heads, width)
            counts[shape] = counts.get(shape, 0) + 1
    tensors_PHSD = {
        (heads, width): _padded_empty((count, heads, num_slots, width), dtype)
        for (heads, width), count in counts.items()
    }
    unused = {shape: iter(tensor) for shape, tensor in tensors_PHSD.items()}
    planes = [
        (next(unused[layer.num_kv_heads, layer.key_dim]), next(unused[layer.num_kv_heads, layer.value_dim]))
        for layer in layers
    ]
    bits = {2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.itemsize]
    groups = [tensor.view(bits).flatten(0, 1).numpy() for tensor in tensors_PHSD.values()]
    return groups, planes


def _padded_empty(shape: tuple[int, int, int, int], dtype: torch.dtype) -> torch.Tensor:
    """Uninitialised, followed in memory by READ_AHEAD rows that may be read but mean nothing."""
    return torch.empty(math.prod(shape) + READ_AHEAD * shape[-1], dtype=dtype)[: math.prod(shape)].view(shape)


@nb.njit(cache=True)
def _move_rows(group_RSD: NDArray[Any], source: SlotArray, target: SlotArray) -> None:
    """Copy rows in order. `source` ascends and never lies below `target`, so overlaps are safe."""
    for plane in range(group_RSD.shape[0]):
        for row in range(len(source)):
            group_RSD[plane, target[row]] = group_RSD[plane, source[row]]
