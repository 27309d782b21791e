"""Tries at start whether a token's logits have the same bits however it is run, as far as one shape reaches.

On a device matrix products round by the number of rows that they have, so steps of up to `FIXED_ROWS` tokens all replay
the forward of so many; with `--exact` they do not, and larger steps and prompts have the same bits, too.
Knows nothing of requests. Invariant: what is said was tried on this device.
"""

from __future__ import annotations

from typing import Protocol

import torch

from decoding.cache.batch import StepBatch
from decoding.cache.block_pool import BLOCK_LEN
from decoding.cache.kv_store import KvStore
from decoding.model.device.graph_runner import FIXED_ROWS
from decoding.model.device.runner import Runner
from decoding.model.self_test import ROOM, Testable, same_bits_up_to

NUM_SEQUENCES = 12  # of `ROOM` tokens, that the test holds at a time


class Exact(Testable, Runner, Protocol):
    is_row_exact: bool


class _Replayed:
    """A model whose forwards are a runner's, over the runner's store."""

    def __init__(self, model: Testable, runner: Runner, store: KvStore) -> None:
        self.dtype, self.kv_dtype, self.weights = model.dtype, model.kv_dtype, model.weights
        self.vocab_size = model.vocab_size
        self.num_parameters, self.max_model_len, self.state_bytes = model.num_parameters, model.max_model_len, 0
        self._runner, self._store = runner, store

    def new_store(self, _num_blocks: int) -> KvStore:
        return self._store

    def forward(self, batch: StepBatch) -> torch.Tensor:
        return self._runner.launch(batch).logits_RV.clone()


def exact_rows(model: Exact, runner: Runner, store: KvStore, most_rows: int) -> int:
    """Within steps of up to so many tokens a token's logits have the same bits in a tree, in a chain, as part of a
    prompt, after a prefix that is found, and in any batch; 0 if in none. most_rows: of any step. Writes to blocks of
    the store, of which nobody holds any."""
    if runner is model and not model.is_row_exact:  # operation by operation
        return 0
    num_slots = store.num_blocks * BLOCK_LEN
    room = min(num_slots, model.max_model_len)
    if num_slots < NUM_SEQUENCES * ROOM or room < FIXED_ROWS:
        return 0
    largest = max(FIXED_ROWS, min(most_rows, room)) if model.is_row_exact else FIXED_ROWS
    return same_bits_up_to(_Replayed(model, runner, store), sorted({largest, FIXED_ROWS}, reverse=True))
