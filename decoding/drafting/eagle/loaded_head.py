"""What every head at work has, whatever it drafts: device, dtype, packed weights and a tap on its target.

Knows nothing of rows, sequences or trees. Invariant: a head runs on its target's device, in its dtype, on its threads.
"""

from __future__ import annotations

import torch

from decoding.cache.kv_store import KvStore
from decoding.core.layer import LayerSpec
from decoding.drafting.block.network import BlockHead
from decoding.drafting.eagle.network import EagleHead
from decoding.drafting.mtp.network import MtpHead
from decoding.errors import ConfigError
from decoding.model.checkpoint import freeze_rope
from decoding.model.linear.packed import round_linears
from decoding.model.replacing.replacer import replace
from decoding.model.replacing.rules import Setting, rules_on_cpu
from decoding.model.target_model import TargetModel
from decoding.model.threads import ThreadChoice, use_threads
from decoding.stores.successor_table import NUM_SUCCESSORS
from decoding.weights.kinds import INT8, KINDS
from decoding.weights.linear import num_bytes_in, num_few_rows, num_packed_shapes
from decoding.weights.numbers.onednn_floats import can_pack
from decoding.weights.rounding import can_round_to_int8
from decoding.weights.row_counts import code_bytes, padded

# Shape suffixes: K rows of the target's, E width, F features of a row.


class LoadedHead:
    """`head` is taken over: on the CPU its linear layers are packed, and rounded to int8 where the processor multiplies
    integers; what it drafts may change by that, and no reply. target: whose features it reads. are_captured: whether
    its forwards will be, and so stay as they are."""

    def __init__(
        self,
        head: EagleHead | MtpHead | BlockHead,
        layers: tuple[LayerSpec, ...],
        target: TargetModel,
        *,
        are_captured: bool = False,
    ) -> None:
        config = head.config
        if config.draft_vocab_size < NUM_SUCCESSORS:
            raise ConfigError(f"the head drafts {config.draft_vocab_size} tokens; it must draft {NUM_SUCCESSORS}")
        self.device, self.dtype = target.device, target.dtype
        self.vocab_size, self.max_model_len = target.vocab_size, target.max_model_len
        self.num_logits = config.draft_vocab_size
        self.mixtures = None  # an MTP head's experts run one by one
        self.state_bytes = 0  # and its layer carries nothing from token to token
        self.threads = ThreadChoice([target.threads.chosen], target.threads.chosen)  # it chooses none: it follows
        self._followed = target.threads
        self.width = config.width
        self.target_ids = head.target_ids.to("cpu", torch.int32).numpy()
        self.num_parameters = _num_own_weights(head)
        if not are_captured and can_round_to_int8(self.device, self.dtype):
            round_linears(head, KINDS[INT8], but="fc")
        self.num_bytes = num_bytes_in(head) - num_bytes_in(head.shared)
        self.fingerprint = f"{target.fingerprint} {config} {self.num_bytes}"
        head.eval()
        self._network = head
        self._layers = layers
        self._tap = target.tap(config.feature_layers)
        freeze_rope(head, self.max_model_len)
        self._few_rows = 0
        self._is_packed = not are_captured and can_pack(self.device, self.dtype)
        if self._is_packed:
            replace(head, rules_on_cpu(Setting(self.dtype)))
            self._few_rows = num_few_rows(head)

    def code_bytes(self, most_rows: int) -> int:
        """What the libraries will keep of code for forwards of up to so many rows."""
        return code_bytes(num_packed_shapes(self._network), self._few_rows, most_rows)

    def new_store(self, num_blocks: int) -> KvStore:
        """Keys and values of so many blocks, empty."""
        return KvStore(self._layers, num_blocks, self.dtype, self.device)

    def features(self, rows_K: torch.Tensor) -> torch.Tensor:
        """[K, F]: a copy of what the target's last forward computed in these rows. rows_K: int64."""
        with torch.inference_mode():
            return self._tap.rows(rows_K.to(self.device, non_blocking=True))

    def fuse(self, features_KF: torch.Tensor) -> torch.Tensor:
        """[K, E]: what the head reads of such rows."""
        use_threads(self._followed.chosen)
        with torch.inference_mode():
            return self._network.fuse(self._padded(features_KF)[None])[0, : len(features_KF)]

    def _padded(self, rows_M: torch.Tensor) -> torch.Tensor:
        return padded(rows_M, self._few_rows) if self._is_packed else rows_M


def _num_own_weights(head: EagleHead | MtpHead | BlockHead) -> int:
    """Those that it does not share with its target, as long as they are torch's."""
    own = set(head.parameters()) - set(head.shared.parameters())
    return sum(each.numel() for each in own)
