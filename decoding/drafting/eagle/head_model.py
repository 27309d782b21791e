"""A head at work: one packed forward of its rows, through the attention backend and in the blocks of its target.

Knows nothing of sequences or trees. Invariant: a head runs on its target's device, in its dtype, on its threads.
"""

from __future__ import annotations

import logging

import torch

from decoding.attention.backend import StaticAttention
from decoding.attention.exact import ExactAttention
from decoding.cache.batch import StepBatch
from decoding.cache.feature_store import FeatureStore
from decoding.cache.kv_store import KvStore, bytes_per_slot
from decoding.cache.step_tensors import StepTensors
from decoding.config import NO_NAMES, OWN_HEAD, EngineConfig
from decoding.drafting.eagle.checkpoint import HeadTarget, find_head, is_head_name, load_head
from decoding.drafting.eagle.fused_head import FusedHead, fused_head
from decoding.drafting.eagle.head_graphs import HeadGraphs, HeadRunner
from decoding.drafting.eagle.network import EagleHead
from decoding.drafting.mtp.checkpoint import load_mtp
from decoding.drafting.mtp.network import MtpHead
from decoding.errors import ConfigError, GanderError
from decoding.model.checkpoint import freeze_rope
from decoding.model.device.capture import Capture, capture_on
from decoding.model.device.graph_runner import BUCKETS, buckets_for
from decoding.model.device.runner import Forward, Progress, silent
from decoding.model.device.stopwatch import stopwatch_on
from decoding.model.layers.activations import fuse_activations
from decoding.model.layers.norms import fuse_norms
from decoding.model.linear.int8 import can_round_to_int8, round_linears
from decoding.model.linear.packed import can_pack, num_few_rows, num_packed_shapes, pack_linears
from decoding.model.linear.row_counts import code_bytes, padded
from decoding.model.linear.sizes import num_bytes_in
from decoding.model.refusal import refusing
from decoding.model.rowwise import make_row_safe
from decoding.model.self_test import self_test_case, trial_steps
from decoding.model.target_model import TargetModel, new_backend
from decoding.model.threads import ThreadChoice, use_threads
from decoding.stores.successor_table import NUM_SUCCESSORS

# Shape suffixes: M rows of the step, K rows of the target's, R rows that are asked of, E width, F features of a row,
# T padded rows, W draft vocabulary.

logger = logging.getLogger(__name__)


class HeadModel:
    """`head` is taken over: on the CPU its linear layers are packed, and rounded to int8 where the processor multiplies
    integers; what it drafts may change by that, and no reply. target: whose features it reads. capture: what notes its
    forwards; None where they are to run as they come."""

    def __init__(self, head: EagleHead | MtpHead, target: TargetModel, capture: Capture | None = None) -> None:
        config = head.config
        if config.draft_vocab_size < NUM_SUCCESSORS:
            raise ConfigError(f"the head drafts {config.draft_vocab_size} tokens; it must draft {NUM_SUCCESSORS}")
        self.device, self.dtype = target.device, target.dtype
        self.vocab_size, self.max_model_len = target.vocab_size, target.max_model_len
        self.num_logits = config.draft_vocab_size
        self.mixtures = None  # an MTP head's experts run one by one
        self.state_bytes = 0  # and its layer carries nothing from token to token
        self.threads = ThreadChoice([target.threads.chosen], target.threads.chosen)
        self.width = config.width
        self.target_ids = head.target_ids.to("cpu", torch.int32).numpy()
        self.num_parameters = _num_own_weights(head)
        is_rounded = capture is None and can_round_to_int8(self.device, self.dtype)
        if is_rounded:
            round_linears(head, but="fc")
        self.num_bytes = num_bytes_in(head) - num_bytes_in(head.shared)
        self.fingerprint = f"{target.fingerprint} {config} {self.num_bytes}"
        self._head = head.eval()
        self._capture = capture
        self._layers = (head.spec,)
        self._backend = new_backend(target.attention, self._layers, self.dtype, self.device)
        self._tap = target.tap(config.feature_layers)
        freeze_rope(head, self.max_model_len)
        self._few_rows = 0
        self._is_packed = capture is None and can_pack(self.device, self.dtype)
        self._fused: FusedHead | None = None
        if self._is_packed:
            pack_linears(head)
            self._few_rows = num_few_rows(head)
            fuse_activations(head, self.dtype)
            make_row_safe(head)
            fuse_norms(head, self.dtype)
        if isinstance(self._backend, ExactAttention):
            self._fuse()

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
        hidden_1RE = result_1ME[:, self._padded(rows_R).to(self.device)]
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

    def _padded(self, rows_M: torch.Tensor) -> torch.Tensor:
        return padded(rows_M, self._few_rows) if self._is_packed else rows_M


def _num_own_weights(head: EagleHead | MtpHead) -> int:
    """Those that it does not share with its target, as long as they are torch's."""
    own = set(head.parameters()) - set(head.shared.parameters())
    return sum(each.numel() for each in own)


def load_head_model(config: EngineConfig, target: TargetModel, progress: Progress) -> HeadModel | None:
    """The head that goes with `config`, if one is asked for, be it as a draft model, or comes with the target.

    Raises ConfigError where it does not fit its target, and ModelRefused where the target's layers cannot be told.
    """
    name, other = config.draft_head, config.draft_model
    if name is not None and other not in ("auto", "none"):
        raise ConfigError(f"draft_head is {name!r} and draft_model {other!r}; only one of them can draft")
    if name is None and other not in NO_NAMES and is_head_name(other):
        name = other
    if name is None:
        return _load_own_head(config, target) if other in ("auto", OWN_HEAD) else None
    progress(f"Loading the head {name}", 0.0)
    with refusing(f"the head {name!r} cannot be loaded"):
        head = load_head(find_head(name), HeadTarget(target.embeddings, target.num_layers))
        if target.packed_embedding is not None and not head.config.owns_embeddings:
            head.embed_tokens = target.packed_embedding
        return HeadModel(head, target, capture_on(target.device) if config.graphs else None)


def _load_own_head(config: EngineConfig, target: TargetModel) -> HeadModel | None:
    """The head in the target's checkpoint. Where nobody asked for it by name, one that cannot be served is left out."""
    try:
        with refusing(f"the MTP head of {config.model!r} cannot be loaded"):
            head = load_mtp(config, target)
            if head is not None:
                return HeadModel(head, target, capture_on(target.device) if config.graphs else None)
    except GanderError as error:
        if config.draft_model == OWN_HEAD:
            raise ConfigError(f"draft_model is {OWN_HEAD!r}, and {config.model!r} cannot draft so: {error}") from error
        logger.warning("%s drafts without the MTP head of its checkpoint: %s", config.model, error)
    if config.draft_model == OWN_HEAD:
        raise ConfigError(f"draft_model is {OWN_HEAD!r}, and the checkpoint of {config.model!r} has no MTP tensors")
    return None
