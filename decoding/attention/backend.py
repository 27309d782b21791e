"""The protocol of attention backends: `prepare` once per step, `attend` once per layer.

Every backend writes the step's keys and values to the store and lets each token attend to its request's
committed tokens, its ancestors in the segment's tree and itself, within the layer's window and chunk.
Invariant: a token's result depends only on its own path (up to rounding; bit for bit in `exact`).
"""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray

from decoding.cache.batch import StepBatch
from decoding.cache.step_tensors import StepTensors, Work, WorkRoom
from decoding.core.layer import LayerSpec


class AttentionBackend(Protocol):
    """Shapes: query [1, H, N, D], key [1, K, N, D], value [1, K, N, V], after rotary embedding; result [1, N, H, V].

    N may exceed the batch's tokens: the rest is padding, which is not stored and whose result is finite.
    """

    def prepare(self, batch: StepBatch) -> Any:
        """Settle the store and compute what all layers of the step share."""

    def attend(
        self, layer: LayerSpec, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, plan: Any
    ) -> torch.Tensor:
        """Store the tokens' keys and values, then attend."""


@runtime_checkable
class StaticAttention(Protocol):
    """A backend that reads a step only from its tensors, so that a forward captured in one step can be replayed in any
    other step of as many padded tokens."""

    def prepare(self, batch: StepBatch) -> StepTensors: ...

    def attend(
        self, layer: LayerSpec, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, plan: StepTensors
    ) -> torch.Tensor: ...

    def share_out(self, batch: StepBatch) -> Work:
        """What it makes of a step."""
        ...

    def most_work(self, num_rows: int, most_keys: int) -> WorkRoom:
        """Room for all steps of up to `num_rows` padded tokens whose segments have up to `most_keys` keys."""
        ...


def visible_keys(batch: StepBatch, segment: int, window: int, chunk: int) -> NDArray[np.bool_]:
    """bool [n, L+w+n]: which of the segment's keys (committed, then its tree's) each of its tokens may see."""
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
