"""The slot pool: the KV layout for devices on which gathering rows is free and moving them is not.

One slot holds one token. A request is an ordered list of slots; committing and forking are bookkeeping.
Knows nothing of tokens or attention.
Invariant: a slot's count is the number of handles that hold it; the free list holds those of count 0.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from decoding.cache.store import NO_SLOTS, KvHandle, SlotArray
from decoding.core.layer import LayerSpec

# Shape suffixes: S slots, H kv heads, D head width, T rows of a request, M rows of a step.


class SlotPool:
    """Token-major storage [S, H, D] per layer, with one slot more than `total`: `trash_slot` takes padding rows."""

    def __init__(self, layers: Sequence[LayerSpec], num_slots: int, dtype: torch.dtype, device: torch.device) -> None:
        self.total = num_slots
        self.dtype = dtype
        self.device = device
        self.trash_slot = num_slots
        self._keys = [_storage(num_slots + 1, layer.num_kv_heads, layer.key_dim, dtype, device) for layer in layers]
        self._values = [_storage(num_slots + 1, layer.num_kv_heads, layer.value_dim, dtype, device) for layer in layers]
        self._free = np.arange(num_slots - 1, -1, -1, dtype=np.int64)  # a stack: the first _num_free entries
        self._num_free = num_slots
        self._counts = np.zeros(num_slots, np.int32)
        self._promised = 0  # capacities of live handles: who was admitted never finds the pool empty
        self._live: set[KvHandle] = set()

    @property
    def used(self) -> int:
        return self.total - self._num_free

    def allocate(self, max_tokens: int) -> KvHandle | None:
        assert max_tokens >= 1, max_tokens
        if self._promised + max_tokens > self.total:
            return None
        self._promised += max_tokens
        handle = KvHandle(capacity=max_tokens, slots=np.empty(max_tokens, np.int64))
        self._live.add(handle)
        return handle

    def reserve(self, handle: KvHandle, num_rows: int, num_kept: int = 0) -> SlotArray | None:
        assert num_kept <= len(handle.reserved), (num_kept, len(handle.reserved))
        if handle.length + num_kept + num_rows > handle.capacity:
            return None
        kept = handle.reserved[:num_kept]
        self._give_back(handle.reserved[num_kept:])
        added = self._take(num_rows)
        handle.reserved = np.concatenate((kept, added)) if num_kept else added
        return added

    def commit(self, handle: KvHandle, path: NDArray[np.int32]) -> None:
        assert len(path) <= len(handle.reserved), (len(path), len(handle.reserved))
        kept = handle.reserved[path]
        handle.slots[handle.length : handle.length + len(path)] = kept
        handle.length += len(path)
        is_dropped = np.ones(len(handle.reserved), np.bool_)
        is_dropped[path] = False
        self._give_back(handle.reserved[is_dropped])
        handle.reserved = NO_SLOTS

    def free(self, handle: KvHandle) -> None:
        self._live.remove(handle)
        self._promised -= handle.capacity
        self._give_back(handle.reserved)
        self._give_back(handle.slots[: handle.length])
        handle.capacity = handle.length = 0
        handle.reserved = handle.slots = NO_SLOTS

    def fork(self, handle: KvHandle, length: int, max_tokens: int | None = None) -> KvHandle | None:
        assert 0 <= length <= handle.length, (length, handle.length)
        copy = self.allocate(max(length, max_tokens or handle.capacity))
        if copy is not None:
            copy.slots[:length] = handle.slots[:length]
            copy.length = length
            self._counts[copy.slots[:length]] += 1
        return copy

    def rows(self, handle: KvHandle, num_rows: int) -> torch.Tensor:
        num_reserved = num_rows - handle.length
        slots_T = np.concatenate(
            [handle.slots[: min(num_rows, handle.length)], handle.reserved[: max(0, num_reserved)]]
        )
        return torch.from_numpy(slots_T).to(self.device, non_blocking=True)

    def write(self, layer: int, key_HMD: torch.Tensor, value_HMD: torch.Tensor, slots_M: torch.Tensor) -> None:
        self._keys[layer].index_copy_(0, slots_M, key_HMD.transpose(0, 1))
        self._values[layer].index_copy_(0, slots_M, value_HMD.transpose(0, 1))

    def gather(self, layer: int, rows: slice | torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self._keys[layer][rows].transpose(0, 1), self._values[layer][rows].transpose(0, 1)

    def check_integrity(self) -> None:
        counts = np.zeros(self.total, np.int32)
        for handle in self._live:
            held = np.concatenate([handle.slots[: handle.length], handle.reserved])
            assert len(np.unique(held)) == len(held), ("a slot twice in one request", held)
            assert len(held) <= handle.capacity, handle
            counts[held] += 1
        assert np.array_equal(counts, self._counts), "reference counts do not match the handles"
        assert self._promised == sum(handle.capacity for handle in self._live) <= self.total, self._promised
        free = np.sort(self._free[: self._num_free])
        assert np.array_equal(free, np.flatnonzero(counts == 0)), "free list and reference counts disagree"

    def _take(self, num_rows: int) -> SlotArray:
        self._num_free -= num_rows
        slots = self._free[self._num_free : self._num_free + num_rows].copy()
        self._counts[slots] = 1
        return slots

    def _give_back(self, slots: SlotArray) -> None:
        self._counts[slots] -= 1
        freed = slots[self._counts[slots] == 0]
        self._free[self._num_free : self._num_free + len(freed)] = freed
        self._num_free += len(freed)


def _storage(num_slots: int, num_heads: int, width: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Zeroed on a device, where padding rows may be read; untouched pages on the CPU."""
    make = torch.empty if device.type == "cpu" else torch.zeros
    return make(num_slots, num_heads, width, dtype=dtype, device=device)
