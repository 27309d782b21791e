"""Where keys and values live: the one interface of every layout.

Knows nothing of tokens, attention or scheduling. A request's rows are its committed tokens in order,
then the rows reserved for the running step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from decoding.core.layer import LayerSpec

# Shape suffixes: H kv heads, D head width, T rows of a request, M rows of a step.
SlotArray = NDArray[np.int64]
NO_SLOTS: SlotArray = np.empty(0, np.int64)


@dataclass(eq=False, slots=True)
class KvHandle:
    """One request's room. Written by its store alone.

    length: committed tokens; capacity: the most rows it may hold, committed and reserved together;
    reserved: the write slots of the running step's rows; slots: what the layout keeps per request.
    """

    capacity: int
    length: int = 0
    start: int = 0
    reserved: SlotArray = field(default_factory=lambda: NO_SLOTS)
    slots: SlotArray = field(default_factory=lambda: NO_SLOTS)


class KvStore(Protocol):
    """Room for keys and values of every layer. `None` and `False` mean: no room now, nothing has changed."""

    total: int

    @property
    def used(self) -> int:
        """Slots that are not free."""

    def allocate(self, max_tokens: int) -> KvHandle | None:
        """Room for a request of at most `max_tokens` rows: its tokens and the tree of its last step."""

    def reserve(self, handle: KvHandle, num_rows: int, num_kept: int = 0) -> SlotArray | None:
        """int64 [num_rows] slots for the next step's rows; replaces an earlier reservation but its first `num_kept`."""

    def commit(self, handle: KvHandle, path: NDArray[np.int32]) -> None:
        """Keep the rows `path` of the step (indices into its reserved rows, ascending), drop the others."""

    def free(self, handle: KvHandle) -> None:
        """Give everything back. The handle is dead afterwards."""

    def fork(self, handle: KvHandle, length: int, max_tokens: int | None = None) -> KvHandle | None:
        """A new handle that starts with the first `length` committed tokens of `handle`."""

    def rows(self, handle: KvHandle, num_rows: int) -> slice | torch.Tensor:
        """An index of the first `num_rows` rows, reserved ones included, for `gather`."""

    def write(self, layer: int, key_HMD: torch.Tensor, value_HMD: torch.Tensor, slots_M: torch.Tensor) -> None:
        """Store the step's rows of one layer."""

    def gather(self, layer: int, rows: slice | torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys [H, T, D] and values [H, T, D] of the indexed rows, a view where the layout allows it."""

    def check_integrity(self) -> None:
        """Raise AssertionError unless the store's invariant holds."""


def bytes_per_slot(layers: Sequence[LayerSpec], dtype: torch.dtype) -> int:
    """Bytes of keys and values that one token takes over all layers."""
    return sum(layer.num_kv_heads * (layer.key_dim + layer.value_dim) for layer in layers) * dtype.itemsize
