"""How much memory the largest step takes beside weights and cache: it is run once, before the cache is sized.

Knows models by their forwards. Invariant: what is measured is freed again.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch

from decoding.cache.batch import Segment, StepBatch, pack
from decoding.cache.block_pool import num_blocks_for
from decoding.cache.kv_cache import KvCache
from decoding.cache.kv_store import KvStore
from decoding.model.device.runner import Forward


class Measured(Protocol):
    """A model, or a head."""

    vocab_size: int
    max_model_len: int

    def new_store(self, num_blocks: int) -> KvStore: ...

    def launch(self, batch: StepBatch) -> Forward: ...


class Meter(Protocol):
    def start(self) -> None: ...

    def stop(self) -> int:
        """The most bytes that were taken at a time since the start, beyond those that were taken then."""
        ...

    def free(self) -> None:
        """Give back what nothing holds any more."""
        ...


class CudaMeter:
    """Counts what torch reserves of the device, so that what is lost between its pieces counts, too."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._before = 0

    def start(self) -> None:
        self.free()
        torch.cuda.reset_peak_memory_stats(self._device)
        self._before = torch.cuda.memory_reserved(self._device)

    def stop(self) -> int:
        return torch.cuda.max_memory_reserved(self._device) - self._before

    def free(self) -> None:
        torch.cuda.empty_cache()


def meter_on(device: torch.device) -> Meter | None:
    """None on a CPU, where half of what is free is left to everything else."""
    return CudaMeter(device) if device.type == "cuda" else None


def step_bytes(model: Measured, num_tokens: int, num_logits: int, meter: Meter) -> int:
    """The bytes that a step of so many tokens, of which so many need logits, takes beside weights and cache."""
    batch = _step(model, num_tokens, num_logits)
    meter.start()
    model.launch(batch).seconds()
    most = meter.stop()
    del batch
    model.launch(_step(model, 1, 1)).seconds()  # attention keeps the last step's buffers, and so its store
    meter.free()
    return most


def _step(model: Measured, num_tokens: int, num_logits: int) -> StepBatch:
    """Chains in a store of their own."""
    lengths = [min(model.max_model_len, num_tokens - first) for first in range(0, num_tokens, model.max_model_len)]
    cache, segments = KvCache(model.new_store(sum(map(num_blocks_for, lengths)))), []
    for length in lengths:
        tokens, own_logits = np.arange(length, dtype=np.int32) % model.vocab_size, min(length, num_logits)
        segments.append(Segment(cache.new_rows(length), tokens, None, own_logits))
        num_logits -= own_logits
    return pack(segments, cache.store)
