"""The network of an EAGLE-3 head: three features fused into one, a decoder layer, and logits over a draft vocabulary.

Plain torch, trained and served alike; what a row attends to is its caller's to say. Knows nothing of files or trees.
Invariant: names of parameters are those of the speculators layout.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from transformers import LlamaConfig
from transformers.activations import ACT2FN
from transformers.models.llama.modeling_llama import LlamaRMSNorm, LlamaRotaryEmbedding, apply_rotary_pos_emb

from decoding.core.layer import LayerSpec
from decoding.drafting.eagle.head_config import NUM_FEATURES, HeadConfig

# Shape suffixes: B sequences, N rows of each, E width, F the features' width (3 of the target's), H query heads,
# K kv heads, D head width, W draft vocabulary, V the target's vocabulary.
Attend = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""From queries [B, H, N, D], keys and values [B, K, N, D], after rotary embedding, to [B, N, H, D]."""


class EagleHead(nn.Module):
    """Row i reads what the target knew at token i and the embedding of token i + 1, and speaks of token i + 2.

    embeddings_VE: the target's or, if `config.owns_embeddings`, its own; never trained. A target's that are packed
    may look up in their place. d2t: int64 [W], what to add to
    a draft token's id for the target's; t2d: bool [V], which tokens the draft vocabulary has.
    """

    d2t: torch.Tensor
    t2d: torch.Tensor

    def __init__(self, config: HeadConfig, embeddings_VE: torch.Tensor) -> None:
        super().__init__()
        width, eps = config.width, config.layer.rms_norm_eps
        assert embeddings_VE.shape == (config.vocab_size, width), (embeddings_VE.shape, config.vocab_size, width)
        self.config = config
        self.embed_tokens: nn.Module = nn.Embedding(*embeddings_VE.shape, _weight=embeddings_VE.detach(), _freeze=True)
        num_columns = NUM_FEATURES * config.target_width
        self.input_norm = LlamaRMSNorm(num_columns, eps) if config.norm_before_fc else None
        norms = [LlamaRMSNorm(config.target_width, eps) for _ in range(NUM_FEATURES)]
        self.fc_norm = nn.ModuleList(norms) if config.fc_norm else None
        self.fc = nn.Linear(num_columns, width, bias=False)
        self.layers = nn.ModuleList([HeadLayer(config)])
        self.norm = LlamaRMSNorm(width, eps)
        self.lm_head = nn.Linear(width, config.draft_vocab_size, bias=False)
        self.rotary_emb = LlamaRotaryEmbedding(config.layer)
        self.register_buffer("d2t", torch.zeros(config.draft_vocab_size, dtype=torch.int64))
        self.register_buffer("t2d", torch.arange(config.vocab_size) < config.draft_vocab_size)

    @property
    def spec(self) -> LayerSpec:
        """Its one layer, for stores and attention backends."""
        layer = self.config.layer
        return LayerSpec(
            index=0,
            num_query_heads=layer.num_attention_heads,
            num_kv_heads=layer.num_key_value_heads,
            key_dim=layer.head_dim,
            value_dim=layer.head_dim,
            scaling=layer.head_dim**-0.5,
            window=self.config.window,
        )

    @property
    def shared(self) -> nn.ModuleList:
        """What is the target's."""
        return nn.ModuleList([] if self.config.owns_embeddings else [self.embed_tokens])

    @property
    def target_ids(self) -> torch.Tensor:
        """int64 [W]: the target's id of each token of the draft vocabulary."""
        return self.d2t + torch.arange(len(self.d2t), device=self.d2t.device)

    def use_vocabulary(self, target_ids: torch.Tensor) -> None:
        """Draft these of the target's tokens only. target_ids: int64 [W], ascending."""
        self.d2t.copy_(target_ids - torch.arange(len(target_ids), device=target_ids.device))
        self.t2d.zero_()
        self.t2d[target_ids] = True

    def fuse(self, features_BNF: torch.Tensor) -> torch.Tensor:
        """[B, N, E]: one hidden state of the target's three, low, middle and high side by side."""
        if self.input_norm is not None:
            features_BNF = self.input_norm(features_BNF)
        if self.fc_norm is not None:
            parts = features_BNF.chunk(NUM_FEATURES, dim=-1)
            features_BNF = torch.cat([norm(part) for norm, part in zip(self.fc_norm, parts, strict=True)], dim=-1)
        fused: torch.Tensor = self.fc(features_BNF)
        return fused

    def forward(
        self, ids_BN: torch.Tensor, hidden_BNE: torch.Tensor, positions_BN: torch.Tensor, attend: Attend
    ) -> torch.Tensor:
        """[B, N, E]: what the next depth takes for `hidden_BNE`, which is fused features at first.

        ids_BN: the tokens that follow the rows' own; positions_BN: of the rows' own tokens.
        """
        rotary = self.rotary_emb(hidden_BNE, positions_BN)
        hidden_BNE = self.layers[0](self.embed_tokens(ids_BN), hidden_BNE, rotary, attend)
        return self.norm(hidden_BNE) if self.config.norm_output else hidden_BNE

    def normed(self, hidden_BNE: torch.Tensor) -> torch.Tensor:
        """[B, N, E]: what the output layer reads of what `forward` gave."""
        normed_BNE: torch.Tensor = hidden_BNE if self.config.norm_output else self.norm(hidden_BNE)
        return normed_BNE

    def logits(self, hidden_BNE: torch.Tensor) -> torch.Tensor:
        """[B, N, W] of what `forward` gave."""
        logits_BNW: torch.Tensor = self.lm_head(self.normed(hidden_BNE))
        return logits_BNW


class HeadLayer(nn.Module):
    """A decoder layer whose attention reads embedding and hidden state side by side."""

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        width, eps = config.width, config.layer.rms_norm_eps
        self.norm_before_residual = config.norm_before_residual
        self.hidden_norm = LlamaRMSNorm(width, eps)
        self.input_layernorm = LlamaRMSNorm(width, eps)
        self.self_attn = HeadAttention(config.layer, 2 * width, qk_norm=config.qk_norm)
        self.post_attention_layernorm = LlamaRMSNorm(width, eps)
        self.mlp = HeadMlp(config.layer)

    def forward(
        self,
        embeddings_BNE: torch.Tensor,
        hidden_BNE: torch.Tensor,
        rotary: tuple[torch.Tensor, torch.Tensor],
        attend: Attend,
    ) -> torch.Tensor:
        normed_BNE = self.hidden_norm(hidden_BNE)
        residual_BNE = normed_BNE if self.norm_before_residual else hidden_BNE
        both = torch.cat([self.input_layernorm(embeddings_BNE), normed_BNE], dim=-1)
        hidden_BNE = residual_BNE + self.self_attn(both, rotary, attend)
        result: torch.Tensor = hidden_BNE + self.mlp(self.post_attention_layernorm(hidden_BNE))
        return result


class HeadAttention(nn.Module):
    """Projections and rotary embedding; `attend` does the rest. num_columns: of its inputs."""

    def __init__(self, layer: LlamaConfig, num_columns: int, *, qk_norm: bool) -> None:
        super().__init__()
        head_dim = layer.head_dim
        self.head_dim = head_dim
        self.q_proj = nn.Linear(num_columns, layer.num_attention_heads * head_dim, bias=layer.attention_bias)
        self.k_proj = nn.Linear(num_columns, layer.num_key_value_heads * head_dim, bias=layer.attention_bias)
        self.v_proj = nn.Linear(num_columns, layer.num_key_value_heads * head_dim, bias=layer.attention_bias)
        self.o_proj = nn.Linear(layer.num_attention_heads * head_dim, layer.hidden_size, bias=layer.attention_bias)
        self.q_norm = LlamaRMSNorm(head_dim, layer.rms_norm_eps) if qk_norm else nn.Identity()
        self.k_norm = LlamaRMSNorm(head_dim, layer.rms_norm_eps) if qk_norm else nn.Identity()

    def forward(self, inputs: torch.Tensor, rotary: tuple[torch.Tensor, torch.Tensor], attend: Attend) -> torch.Tensor:
        query_BHND = self.q_norm(self._heads(self.q_proj(inputs))).transpose(1, 2)
        key_BKND, value_BKND = self._key_and_value(inputs)
        query_BHND, key_BKND = apply_rotary_pos_emb(query_BHND, key_BKND, *rotary)
        output: torch.Tensor = self.o_proj(attend(query_BHND, key_BKND, value_BKND).flatten(2))
        return output

    def keys_and_values(
        self, inputs: torch.Tensor, rotary: tuple[torch.Tensor, torch.Tensor]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Of rows that only others attend to: [B, K, N, D] each."""
        key_BKND, value_BKND = self._key_and_value(inputs)
        key_BKND, _ = apply_rotary_pos_emb(key_BKND, key_BKND, *rotary)
        return key_BKND, value_BKND

    def _key_and_value(self, inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Before rotary embedding."""
        key_BNKD = self.k_norm(self._heads(self.k_proj(inputs)))
        return key_BNKD.transpose(1, 2), self._heads(self.v_proj(inputs)).transpose(1, 2)

    def _heads(self, rows: torch.Tensor) -> torch.Tensor:
        return rows.view(*rows.shape[:2], -1, self.head_dim)


class HeadMlp(nn.Module):
    def __init__(self, layer: LlamaConfig) -> None:
        super().__init__()
        width = layer.hidden_size
        self.gate_proj = nn.Linear(width, layer.intermediate_size, bias=layer.mlp_bias)
        self.up_proj = nn.Linear(width, layer.intermediate_size, bias=layer.mlp_bias)
        self.down_proj = nn.Linear(layer.intermediate_size, width, bias=layer.mlp_bias)
        self.act_fn = ACT2FN[layer.hidden_act]

    def forward(self, hidden_BNE: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.down_proj(self.act_fn(self.gate_proj(hidden_BNE)) * self.up_proj(hidden_BNE))
        return output
