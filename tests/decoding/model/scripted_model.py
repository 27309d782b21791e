"""A model whose forwards run nothing and take as long, on a clock of its own, as they are told to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from decoding.cache.batch import StepBatch
from decoding.cache.kv_store import KvStore
from decoding.model.device.runner import Forward
from decoding.model.threads import ThreadChoice

CPU = torch.device("cpu")
Seconds = Callable[[int, int], float]  # of a forward, by its numbers of threads and of rows


@dataclass
class ScriptedModel:
    """Its own runner. seen: threads and rows of every forward."""

    seconds: Seconds
    threads: ThreadChoice = field(default_factory=lambda: ThreadChoice([1, 2], 1))
    seen: list[tuple[int, int]] = field(default_factory=list)
    now: float = 0.0
    fingerprint: str = "scripted"
    vocab_size: int = 100
    max_model_len: int = 256
    mixtures: None = None
    device: torch.device = CPU

    def clock(self) -> float:
        return self.now

    def new_store(self, num_blocks: int) -> KvStore:
        return KvStore((), num_blocks, torch.float32, CPU)

    def runner_over(self, _store: KvStore, _most_keys: int, _most_rows: int) -> ScriptedModel:
        return self

    def launch(self, batch: StepBatch) -> Forward:
        count, num_rows = self.threads.count, batch.num_tokens
        seconds = self.seconds(count, num_rows)
        self.seen.append((count, num_rows))
        self.now += seconds
        self.threads.observe(num_rows, seconds)
        return Forward(torch.zeros(0, self.vocab_size), lambda: seconds)
