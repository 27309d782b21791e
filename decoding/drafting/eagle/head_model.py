"""A head at work: one packed forward of its rows, through the attention backend and in the blocks of its target.

Knows nothing of sequences or trees. Invariant: a head's keys and values are those of its one layer.
"""

from __future__ import annotations

import torch

from decoding.attention.backend import StaticAttention
from decoding.attention.backends import new_backend
from decoding.attention.exact import ExactAttention
from decoding.cache.batch import StepBatch
from decoding.cache.feature_store import FeatureStore
from decoding.cache.kv_store import KvStore, bytes_per_slot
from decoding.cache.step_tensors import StepTensors
from decoding.drafting.eagle.fused_head import FusedHead, fused_head
from decoding.drafting.eagle.head_graphs import HeadGraphs, HeadRunner
from decoding.drafting.eagle.loaded_head import LoadedHead
from decoding.drafting.eagle.network import EagleHead
from decoding.drafting.mtp.network import MtpHead
from decoding.model.device.capture import Capture
from decoding.model.device.graph_runner import BUCKETS, buckets_for
from decoding.model.device.runner import Forward, Progress, silent, stopwatch_on
from decoding.model.self_test import self_test_case, trial_steps
from decoding.model.target_model import TargetModel
from decoding.model.threads import use_threads

# Shape suffixes: M rows of the step, K rows of the target's, R rows that are asked of, E width, F features of a row,
# T padded rows, W draft vocabulary.


class HeadModel(LoadedHead):
    """capture: what notes its forwards; None where they are to run as they come. The others: as of a `LoadedHead`."""

    def __init__(self, head: EagleHead | MtpHead, target: TargetModel, capture: Capture | None = None) -> None:
        super().__init__(head, (head.spec,), target, are_captured=capture is not None)
        self._head = head
        self._capture = capture
        self._backend = new_backend(target.attention, self._layers, self.dtype, self.device)
        self._fused: FusedHead | None = None
        if isinstance(self._backend, ExactAttention):
            self._fuse()

    @property
    def bytes_per_slot(self) -> int:
        """Of its keys and values, and of a feature."""
        return bytes_per_slot(self._layers, self.dtype) + FeatureStore.bytes_per_slot(self.width, self.dtype)

    def run(self, batch: StepBatch, hidden_ME: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Of the rows `batch.logit_rows_R` what goes on to the next depth, [R, E], and float32 logits, [R, W]."""
        use_threads(self._followed.chosen)
        with torch.inference_mode():
            if self._fused is not None and batch.num_tokens <= self._fused.few_rows:
                hidden_RE, logits_RW = self._fused.run(batch, hidden_ME, self._backend.prepare(batch))
            else:
                hidden_RE, logits_RW = self._run_modules(batch, hidden_ME)
        return hidden_RE, logits_RW.float().contiguous()

    def _run_modules(self, batch: StepBatch, hidden_ME: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        rows_R = torch.from_numpy(batch.logit_rows_R)
        ids_1M = self._padded(torch.from_numpy(batch.ids_M))[None].to(self.device, non_blocking=True)
        positions_1M = self._padded(torch.from_numpy(batch.positions_M))[None].to(self.device, non_blocking=True)
        plan, layer = self._backend.prepare(batch), self._layers[0]
        result_1ME = self._head(
            ids_1M,
            self._padded(hidden_ME)[None],
            positions_1M,
            lambda query, key, value: self._backend.attend(layer, query, key, value, plan),
        )
        hidden_1RE = result_1ME[:, self._padded(rows_R).to(self.device, non_blocking=True)]
        num_rows = len(rows_R)
        return hidden_1RE[0, :num_rows], self._head.logits(hidden_1RE)[0, :num_rows]

    def _fuse(self) -> None:
        """Have a few rows run as one call, where bits stay as they are."""
        fused = fused_head(self._head, self._layers[0])
        if fused is None:
            return
        trials = trial_steps(self, self_test_case(self.vocab_size))
        expected = [self._run_embedded(batch) for batch in trials]
        self._fused = fused
        for batch, wanted in zip(trials, expected, strict=True):
            if not all(map(torch.equal, self._run_embedded(batch), wanted)):
                self._fused = None

    def run_static(self, step: StepTensors, hidden_TE: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The same over a step's tensors, of the rows `logit_rows_L`. Reads nothing back to the host."""
        layer = self._layers[0]
        with torch.inference_mode():
            result_1TE = self._head(
                step.ids_T[None],
                hidden_TE[None],
                step.positions_T[None],
                lambda query, key, value: self._backend.attend(layer, query, key, value, step),
            )
            hidden_1TE = result_1TE[:, step.logit_rows_L]
            return hidden_1TE[0], self._head.logits(hidden_1TE)[0]

    def runner_over(
        self, store: KvStore, most_keys: int, most_rows: int = BUCKETS[-1], progress: Progress = silent
    ) -> HeadRunner:
        """What runs it over an empty store the quickest way there is: the head itself, or captured forwards.

        most_keys: of a segment; most_rows: that captured forwards need to have.
        """
        if self._capture is None or not isinstance(self._backend, StaticAttention):
            return self
        graphs = HeadGraphs(self, self._backend, store, most_keys, buckets_for(most_rows))
        return graphs if graphs.try_capture(self._capture, progress) else self

    def launch(self, batch: StepBatch) -> Forward:
        """A forward for who measures what it takes."""
        stopwatch = stopwatch_on(self.device)()
        logits_RW = self.forward(batch)
        stopwatch.stop()
        return Forward(logits_RW, stopwatch.seconds)

    def forward(self, batch: StepBatch) -> torch.Tensor:
        """float32 [R, W]: logits after hidden states that are the embeddings of the rows' tokens, for who tries it."""
        return self._run_embedded(batch)[1]

    def _run_embedded(self, batch: StepBatch) -> tuple[torch.Tensor, torch.Tensor]:
        return self.run(batch, self._head.embed_tokens(torch.from_numpy(batch.ids_M).to(self.device)).detach())
