"""The network of an MTP module: hidden state and embedding joined, one decoder layer of the target's own class, a norm.

Embedding, last norm and output layer are the target's. What a row attends to is its caller's to say. Knows no files.
Invariant: what goes into a depth is normed: the target's last norm before the first, the module's own after each.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from decoding.core.layer import LayerSpec
from decoding.drafting.eagle.network import Attend
from decoding.model.seam import SERVING, Seam, set_implementation
from decoding.model.shared_parts import SharedParts

# Shape suffixes: B sequences, N rows of each, E width, V vocabulary.


@dataclass(frozen=True, slots=True, kw_only=True)
class MtpConfig:
    """What a `HeadModel` asks of any head. kind: the target's type."""

    kind: str
    width: int
    draft_vocab_size: int
    feature_layers: tuple[int]
    owns_embeddings: bool = False


class MtpHead(nn.Module):
    """Row i reads what the target knew at token i and the embedding of token i + 1, and speaks of token i + 2
    (DeepSeek-V3, section 2.2). The first module is run again for every deeper token.

    body: a model of the target's type with one layer and a norm, which are the module's. spec: of that layer.
    """

    def __init__(self, body: PreTrainedModel, shared: SharedParts, spec: LayerSpec) -> None:
        super().__init__()
        parts, config = body, shared.config
        layer: Any = parts.layers[0]
        self.config = MtpConfig(
            kind=config.model_type,
            width=config.hidden_size,
            draft_vocab_size=config.vocab_size,
            feature_layers=(config.num_hidden_layers,),
        )
        self.spec = spec
        self.embed_tokens, self.target_norm, self.lm_head = shared.embedding, shared.norm, shared.output
        self.pre_fc_norm_embedding, self.pre_fc_norm_hidden = deepcopy(parts.norm), deepcopy(parts.norm)
        self.layers, self.norm, self.rotary_emb = parts.layers, parts.norm, parts.rotary_emb
        self.fc = nn.Linear(2 * self.config.width, self.config.width, bias=False).to(self.norm.weight)
        set_implementation(body, SERVING)
        self._seam = Seam([(layer.self_attn, spec)], _Asked())

    @property
    def shared(self) -> nn.ModuleList:
        """What is the target's."""
        return nn.ModuleList([self.embed_tokens, self.target_norm, self.lm_head])

    @property
    def target_ids(self) -> torch.Tensor:
        """int64 [V]: it drafts all of the target's tokens."""
        return torch.arange(self.config.draft_vocab_size)

    def fuse(self, features_BNE: torch.Tensor) -> torch.Tensor:
        """[B, N, E]: what the target's output layer reads. features_BNE: what its last layer gave."""
        normed_BNE: torch.Tensor = self.target_norm(features_BNE)
        return normed_BNE

    def forward(
        self, ids_BN: torch.Tensor, hidden_BNE: torch.Tensor, positions_BN: torch.Tensor, attend: Attend
    ) -> torch.Tensor:
        """[B, N, E]: what the next depth takes for `hidden_BNE`. Arguments as an `EagleHead`'s."""
        embeddings_BNE = self.pre_fc_norm_embedding(self.embed_tokens(ids_BN))
        joined = self.fc(torch.cat([embeddings_BNE, self.pre_fc_norm_hidden(hidden_BNE)], dim=-1))
        with self._seam.running(attend):
            result_BNE = self.layers[0](
                joined,
                attention_mask=None,
                position_embeddings=self._rotations(joined, positions_BN),
                position_ids=positions_BN,
                past_key_values=None,
                use_cache=False,
            )
        normed_BNE: torch.Tensor = self.norm(result_BNE)
        return normed_BNE

    def _rotations(self, hidden_BNE: torch.Tensor, positions_BN: torch.Tensor) -> Any:
        """Cosines and sines, as the layer takes them."""
        try:
            return self.rotary_emb(hidden_BNE, positions_BN)
        except IndexError:  # Qwen3.5's of transformers 5.17 wants a position for each of three axes
            return self.rotary_emb(hidden_BNE, positions_BN.expand(3, *positions_BN.shape))

    def logits(self, hidden_BNE: torch.Tensor) -> torch.Tensor:
        """[B, N, V] of what `forward` gave."""
        logits_BNV: torch.Tensor = self.lm_head(hidden_BNE)
        return logits_BNV


def of_one_layer(config: Any) -> Any:
    """The configuration of a model whose one layer is the MTP module's: it attends fully and, where a model has
    experts at all but in its first layers, has them. config: of the target's text model."""
    config = deepcopy(config)
    config.num_hidden_layers, config.vocab_size, config.pad_token_id = 1, 1, None
    if getattr(config, "layer_types", None) is not None:
        config.layer_types = ["full_attention"]
    if hasattr(config, "first_k_dense_replace"):
        config.first_k_dense_replace = 0
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    return config


class _Asked:
    """Stands for an attention backend: the plan is what attends."""

    def prepare(self, batch: Any) -> Attend:
        raise AssertionError(f"a head's caller says how it attends, not {batch}")

    def attend(
        self, _layer: LayerSpec, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, plan: Attend
    ) -> torch.Tensor:
        return plan(query, key, value)
