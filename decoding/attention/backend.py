"""What an attention backend is: `prepare` once per step, `attend` once per layer.

Every backend stores the step's keys and values in the store and lets each row attend to its request's
committed tokens, its ancestors in the segment's tree and itself, within the layer's window and chunk.
Invariant: a row's result depends on its own path alone (up to rounding; bit for bit in `exact`).
"""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray

from decoding.cache.batch import StepBatch
from decoding.cache.step_tensors import StepTensors
from decoding.core.layer import LayerSpec
from decoding.core.tree import IntArray


class AttentionBackend(Protocol):
    """Shapes: query [1, H, N, D], key [1, K, N, D], value [1, K, N, V], after rotary embedding; result [1, N, H, V].

    N may exceed the batch's rows: the rows beyond are padding, are not stored, and their result is finite.
    """

    def prepare(self, batch: StepBatch) -> Any:
        """Whatever is common to all layers of the step."""

    def attend(
        self, layer: LayerSpec, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, plan: Any
    ) -> torch.Tensor:
        """Store the rows' keys and values, then attend."""


@runtime_checkable
class StaticAttention(Protocol):
    """A backend whose plan is a step's tensors and nothing else, so that what it queues for one step fits all others
    of as many rows: forwards through it may be captured and replayed."""

    def prepare(self, batch: StepBatch) -> StepTensors: ...

    def attend(
        self, layer: LayerSpec, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, plan: StepTensors
    ) -> torch.Tensor: ...

    def share_out(self, batch: StepBatch) -> IntArray:
        """int32: what the step's `work_W` is filled with."""
        ...

    def most_work(self, num_rows: int, most_keys: int) -> int:
        """How many numbers that may be for so many padded rows, of segments of up to so many keys."""
        ...


def visible_keys(batch: StepBatch, segment: int, window: int, chunk: int) -> NDArray[np.bool_]:
    """bool [n, L+w+n]: which of the segment's keys (committed, then its tree's rows) each of its new rows may see."""
    first, end = batch.tree_offsets[segment], batch.tree_offsets[segment + 1]
    tree_size, prefix_len, num_written = end - first, batch.prefix_lens[segment], batch.num_written[segment]
    tree_positions = batch.positions_P[first:end]
    positions = tree_positions[num_written:]
    visible = np.ones((tree_size - num_written, prefix_len + tree_size), np.bool_)
    if batch.is_chain[segment]:
        visible[:, prefix_len:] = np.tri(tree_size, dtype=np.bool_)[num_written:]
    else:
        bits = batch.ancestor_bits(segment)[num_written:]
        visible[:, prefix_len:] = np.unpackbits(bits.view(np.uint8), axis=1, bitorder="little")[:, :tree_size]
    key_positions = np.concatenate([np.arange(prefix_len), tree_positions])
    if window:
        visible &= key_positions > positions[:, None] - window
    if chunk:
        visible &= key_positions // chunk == positions[:, None] // chunk
    return visible
