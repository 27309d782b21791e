"""A head at work: one packed forward of its rows, through the attention backend and in the blocks of its target.

Knows nothing of sequences or trees. Invariant: a head runs on its target's device, in its dtype, on its threads.
"""

from __future__ import annotations

import torch

from decoding.attention.backend import StaticAttention
from decoding.cache.batch import StepBatch
from decoding.cache.feature_store import FeatureStore
from decoding.cache.kv_store import KvStore, bytes_per_slot
from decoding.cache.step_tensors import StepTensors
from decoding.config import EngineConfig
from decoding.drafting.eagle.checkpoint import HeadTarget, find_head, is_head_name, load_head
from decoding.drafting.eagle.head_graphs import HeadGraphs, HeadRunner
from decoding.drafting.eagle.network import EagleHead, layer_spec
from decoding.errors import ConfigError
from decoding.model.checkpoint import freeze_rope
from decoding.model.device.capture import Capture, capture_on
from decoding.model.device.graph_runner import BUCKETS, buckets_for
from decoding.model.device.runner import Forward, Progress, silent
from decoding.model.device.stopwatch import stopwatch_on
from decoding.model.layers.activations import fuse_activations
from decoding.model.layers.norms import fuse_norms
from decoding.model.linear.packed import can_pack, num_few_rows, num_packed_shapes, pack_linears
from decoding.model.linear.row_counts import code_bytes, padded
from decoding.model.rowwise import make_row_safe
from decoding.model.target_model import TargetModel, new_backend
from decoding.model.threads import ThreadChoice, use_threads
from decoding.stores.successor_table import NUM_SUCCESSORS

# Shape suffixes: M rows of the step, K rows of the target's, R rows that are asked of, E width, F features of a row,
# T padded rows, W draft vocabulary.


class HeadModel:
    """`head` is taken over: its linear layers are packed on the CPU. target: whose features it reads. capture: what
    notes its forwards; None where they are to run as they come."""

    def __init__(self, head: EagleHead, target: TargetModel, capture: Capture | None = None) -> None:
        config = head.config
        if config.draft_vocab_size < NUM_SUCCESSORS:
            raise ConfigError(f"the head drafts {config.draft_vocab_size} tokens; it must draft {NUM_SUCCESSORS}")
        self.fingerprint = f"{target.fingerprint} {config}"
        self.device, self.dtype = target.device, target.dtype
        self.vocab_size, self.max_model_len = target.vocab_size, target.max_model_len
        self.num_logits = config.draft_vocab_size
        self.threads = ThreadChoice([target.threads.chosen], target.threads.chosen)
        self.width = config.width
        self.target_ids = head.target_ids.to("cpu", torch.int32).numpy()
        own = [each for each in head.parameters() if each.requires_grad or config.owns_embeddings]
        self.num_bytes = sum(each.numel() for each in own) * self.dtype.itemsize
        self._head = head.eval()
        self._capture = capture
        self._layers = (layer_spec(config),)
        self._backend = new_backend(target.attention, self._layers, self.dtype, self.device)
        self._tap = target.tap(config.feature_layers)
        freeze_rope(head, self.max_model_len)
        self._few_rows = 0
        self._is_packed = capture is None and can_pack(self.device, self.dtype)
        if self._is_packed:
            pack_linears(head)
            self._few_rows = num_few_rows(head)
            fuse_activations(head, self.dtype)
            make_row_safe(head)
            fuse_norms(head, self.dtype)

    @property
    def bytes_per_slot(self) -> int:
        """Of its keys and values, and of a feature."""
        return bytes_per_slot(self._layers, self.dtype) + FeatureStore.bytes_per_slot(self.width, self.dtype)

    def code_bytes(self, most_rows: int) -> int:
        """What the libraries will keep of code for forwards of up to so many rows."""
        return code_bytes(num_packed_shapes(self._head), self._few_rows, most_rows)

    def new_store(self, num_blocks: int) -> KvStore:
        """Keys and values of so many blocks, empty."""
        return KvStore(self._layers, num_blocks, self.dtype, self.device)

    def features(self, rows_K: torch.Tensor) -> torch.Tensor:
        """[K, F]: a copy of what the target's last forward computed in these rows. rows_K: int64."""
        with torch.inference_mode():
            return self._tap.rows(rows_K.to(self.device))

    def fuse(self, features_KF: torch.Tensor) -> torch.Tensor:
        """[K, E]: what the head's first depth reads of such rows."""
        use_threads(self.threads.count)
        with torch.inference_mode():
            return self._head.fuse(self._padded(features_KF)[None])[0, : len(features_KF)]

    def run(self, batch: StepBatch, hidden_ME: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Of the rows `batch.logit_rows_R` what goes on to the next depth, [R, E], and float32 logits, [R, W]."""
        use_threads(self.threads.count)
        rows_R = torch.from_numpy(batch.logit_rows_R)
        ids_1M = self._padded(torch.from_numpy(batch.ids_M))[None].to(self.device, non_blocking=True)
        positions_1M = self._padded(torch.from_numpy(batch.positions_M))[None].to(self.device, non_blocking=True)
        plan, layer = self._backend.prepare(batch), self._layers[0]
        with torch.inference_mode():
            result_1ME = self._head(
                ids_1M,
                self._padded(hidden_ME)[None],
                positions_1M,
                lambda query, key, value: self._backend.attend(layer, query, key, value, plan),
            )
            hidden_1RE = result_1ME[:, self._padded(rows_R).to(self.device)]
            logits_1RW = self._head.logits(hidden_1RE)
        num_rows = len(rows_R)
        return hidden_1RE[0, :num_rows], logits_1RW[0, :num_rows].float().contiguous()

    def run_static(self, step: StepTensors, hidden_TE: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The same over a step's tensors, of the rows `logit_rows_T`. Reads nothing back to the host."""
        layer = self._layers[0]
        with torch.inference_mode():
            result_1TE = self._head(
                step.ids_T[None],
                hidden_TE[None],
                step.positions_T[None],
                lambda query, key, value: self._backend.attend(layer, query, key, value, step),
            )
            hidden_1TE = result_1TE[:, step.logit_rows_T]
            return hidden_1TE[0], self._head.logits(hidden_1TE)[0]

    def runner_over(self, store: KvStore, most_keys: int, most_rows: int = BUCKETS[-1]) -> HeadRunner:
        """What runs it over an empty store the quickest way there is: the head itself, or captured forwards.

        most_keys: of a segment; most_rows: that captured forwards need to have.
        """
        if self._capture is None or not isinstance(self._backend, StaticAttention):
            return self
        graphs = HeadGraphs(self, self._backend, store, most_keys, buckets_for(most_rows))
        return graphs if graphs.try_capture(self._capture, silent) else self

    def launch(self, batch: StepBatch) -> Forward:
        """A forward after hidden states of zeros, for who measures what it takes."""
        hidden_ME = torch.zeros(batch.num_tokens, self.width, dtype=self.dtype, device=self.device)
        stopwatch = stopwatch_on(self.device)()
        _, logits_RW = self.run(batch, hidden_ME)
        stopwatch.stop()
        return Forward(logits_RW, stopwatch)

    def _padded(self, rows_M: torch.Tensor) -> torch.Tensor:
        return padded(rows_M, self._few_rows) if self._is_packed else rows_M


def load_head_model(config: EngineConfig, target: TargetModel, progress: Progress) -> HeadModel | None:
    """The head that goes with `config`, if one is asked for, be it as a draft model.

    Raises ConfigError where it does not fit its target, and ModelRefused where the target's layers cannot be told.
    """
    name, other = config.draft_head, config.draft_model
    if name is not None and other not in ("auto", "none"):
        raise ConfigError(f"draft_head is {name!r} and draft_model {other!r}; only one of them can draft")
    if name is None and other not in ("auto", "none") and is_head_name(other):
        name = other
    if name is None:
        return None
    progress(f"Loading the head {name}", 0.0)
    head = load_head(find_head(name), HeadTarget(target.embeddings, len(target.layers)))
    return HeadModel(head, target, capture_on(target.device) if config.graphs else None)
