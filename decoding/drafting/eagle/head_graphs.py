"""A head's forwards, captured once for each of a few row counts and replayed, as its target's are.

Owns the hidden states that go into them and those that come out, at addresses that stay. Knows nothing of networks.
Invariant: what a forward leaves is there until the next one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

from decoding.attention.backend import StaticAttention
from decoding.cache.batch import StepBatch
from decoding.cache.kv_store import KvStore
from decoding.cache.step_tensors import StepTensors
from decoding.model.device.capture import Capture
from decoding.model.device.graph_runner import GraphRunner
from decoding.model.device.runner import Forward, Progress, Runner
from decoding.model.features import FeatureTap

# Shape suffixes: M rows of the step, R rows that are asked of, T padded rows, E width, W draft vocabulary.


class HeadRunner(Runner, Protocol):
    """What a head's rounds are run with. `launch` is for who measures: the hidden states are any."""

    def run(self, batch: StepBatch, hidden_ME: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Of the rows `batch.logit_rows_R` what goes on to the next depth, [R, E], and float32 logits, [R, W]."""
        ...


class StaticHead(HeadRunner, Protocol):
    """A head whose forwards can be captured. num_logits: of a row; width: of a hidden state."""

    num_logits: int
    width: int
    dtype: torch.dtype
    device: torch.device

    def run_static(self, step: StepTensors, hidden_TE: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Of the rows `logit_rows_L`, as `run` gives them, in any dtype. Reads nothing back to the host."""
        ...


class HeadGraphs:
    """A `HeadRunner`, and what its graphs are captured of. The head itself runs what does not fit them."""

    def __init__(
        self, head: StaticHead, attention: StaticAttention, store: KvStore, most_keys: int, buckets: Sequence[int]
    ) -> None:
        self.num_logits = head.num_logits
        self.taps: list[FeatureTap] = []
        self._head = head
        self._given_TE = torch.zeros(buckets[-1], head.width, dtype=head.dtype, device=head.device)
        self._passed_TE = torch.zeros_like(self._given_TE)
        self._graphs = GraphRunner(self, attention, store, most_keys, buckets)

    def try_capture(self, capture: Capture, progress: Progress) -> bool:
        """Whether its forwards can be captured, and are from here on; why not is told."""
        return self._graphs.try_capture(capture, progress)

    def run(self, batch: StepBatch, hidden_ME: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if not self._graphs.holds(batch):
            return self._head.run(batch, hidden_ME)
        self._given_TE[: len(hidden_ME)].copy_(hidden_ME)
        logits_RW = self._graphs.launch(batch).logits_RV
        return self._passed_TE[: len(logits_RW)], logits_RW

    def launch(self, batch: StepBatch) -> Forward:
        return self._graphs.launch(batch) if self._graphs.holds(batch) else self._head.launch(batch)

    def run_static(self, step: StepTensors) -> torch.Tensor:
        """[T, W]: logits; what goes on is passed."""
        hidden_TE, logits_TW = self._head.run_static(step, self._given_TE[: len(step.ids_T)])
        self._passed_TE[: len(hidden_TE)].copy_(hidden_TE)
        return logits_TW
