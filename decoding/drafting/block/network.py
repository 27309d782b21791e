"""The network of a block head: features of the target as keys and values, and rows of which all but one are masked.

Plain torch, trained and served alike; what a row attends to is its caller's to say. Embedding and output layer are the
target's. Knows nothing of files or trees. Invariant: names of its own parameters are those of DFlash's layout.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from transformers.models.llama.modeling_llama import LlamaRMSNorm, LlamaRotaryEmbedding

from decoding.core.layer import LayerSpec
from decoding.drafting.block.block_config import BlockConfig
from decoding.drafting.eagle.network import Attend, HeadAttention, HeadMlp

# Shape suffixes: B sequences, N rows of each, E width, F the features' width, K kv heads, D head width, V vocabulary,
# L layers, K of tokens those that are asked about.


class BlockHead(nn.Module):
    """Rows of a block are the last known token, and the mask for each place after it; the row of a place speaks of the
    token there, or of the next one (`names_from_root`). They see all tokens before, by what the target knew at each,
    and one another (DFlash, section 3).

    embedding, output: the target's.
    """

    def __init__(self, config: BlockConfig, embedding: nn.Module, output: nn.Module) -> None:
        super().__init__()
        width, eps = config.width, config.layer.rms_norm_eps
        self.config = config
        self.embed_tokens, self.lm_head = embedding, output
        self.fc = nn.Linear(len(config.feature_layers) * width, width, bias=False)
        self.hidden_norm = LlamaRMSNorm(width, eps)
        self.layers = nn.ModuleList([BlockLayer(config) for _ in range(config.num_layers)])
        self.norm = LlamaRMSNorm(width, eps)
        self.rotary_emb = LlamaRotaryEmbedding(config.layer)
        self.markov_head = Correction(config.draft_vocab_size, config.markov_rank) if config.markov_rank else None

    @property
    def specs(self) -> tuple[LayerSpec, ...]:
        """Its layers, for stores and attention backends. Who sees whom within a block is the head's own to see to."""
        layer = self.config.layer
        return tuple(
            LayerSpec(
                index=index,
                num_query_heads=layer.num_attention_heads,
                num_kv_heads=layer.num_key_value_heads,
                key_dim=layer.head_dim,
                value_dim=layer.head_dim,
                scaling=layer.head_dim**-0.5,
                window=self.config.windows[index],
            )
            for index in range(self.config.num_layers)
        )

    @property
    def shared(self) -> nn.ModuleList:
        """What is the target's."""
        return nn.ModuleList([self.embed_tokens, self.lm_head])

    @property
    def target_ids(self) -> torch.Tensor:
        """int64 [V]: it drafts all of the target's tokens."""
        return torch.arange(self.config.draft_vocab_size)

    @property
    def t2d(self) -> torch.Tensor:
        """bool [V]: so each of the target's is among them."""
        return torch.ones(self.config.draft_vocab_size, dtype=torch.bool, device=self.fc.weight.device)

    def own_state(self) -> dict[str, torch.Tensor]:
        """Its parameters without the target's, by name."""
        shared = ("embed_tokens.", "lm_head.")
        return {name: each for name, each in self.state_dict().items() if not name.startswith(shared)}

    def fuse(self, features_BNF: torch.Tensor) -> torch.Tensor:
        """[B, N, E]: what every layer makes keys and values of."""
        fused: torch.Tensor = self.hidden_norm(self.fc(features_BNF))
        return fused

    def keys_and_values(
        self, fused_BNE: torch.Tensor, positions_BN: torch.Tensor
    ) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Of each layer [B, K, N, D], for tokens that the target knows."""
        rotary = self.rotary_emb(fused_BNE, positions_BN)
        return [_attention_of(layer).keys_and_values(fused_BNE, rotary) for layer in self.layers]

    def forward(
        self, ids_BN: torch.Tensor, positions_BN: torch.Tensor, attend_in: Callable[[int], Attend]
    ) -> torch.Tensor:
        """[B, N, E] of a block's rows. attend_in: how rows attend in each layer; their own keys and values are of the
        block alone."""
        hidden_BNE = self.embed_tokens(ids_BN) * self.config.embedding_scale
        rotary = self.rotary_emb(hidden_BNE, positions_BN)
        for index, layer in enumerate(self.layers):
            hidden_BNE = layer(hidden_BNE, rotary, attend_in(index))
        normed_BNE: torch.Tensor = self.norm(hidden_BNE)
        return normed_BNE

    def logits(self, hidden_BNE: torch.Tensor) -> torch.Tensor:
        """[B, N, V] of what `forward` gave."""
        return self.scaled(self.lm_head(hidden_BNE))

    def scaled(self, logits_BNV: torch.Tensor) -> torch.Tensor:
        """What the output layer gave, by the config's scale and cap."""
        softcap, scaled_BNV = self.config.softcap, logits_BNV * self.config.output_scale
        return torch.tanh(scaled_BNV / softcap) * softcap if softcap else scaled_BNV


class Correction(nn.Module):
    """What the token before says of a token: the product of a short vector of each (DSpark's vanilla Markov head). Both
    are looked up, since few tokens are asked about."""

    def __init__(self, vocab_size: int, rank: int) -> None:
        super().__init__()
        self.markov_w1, self.markov_w2 = nn.Embedding(vocab_size, rank), nn.Embedding(vocab_size, rank)

    def forward(self, before: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        """[.., K]: what to add to the logits of `ids`, [.., K], after the tokens `before`, [..]."""
        added: torch.Tensor = (self.markov_w2(ids) @ self.markov_w1(before)[..., None])[..., 0]
        return added

    def of_all(self, before: torch.Tensor) -> torch.Tensor:
        """[.., V]: the same of all tokens."""
        return functional.linear(self.markov_w1(before), self.markov_w2.weight)


class BlockLayer(nn.Module):
    def __init__(self, config: BlockConfig) -> None:
        super().__init__()
        width, eps = config.width, config.layer.rms_norm_eps
        self.input_layernorm = LlamaRMSNorm(width, eps)
        self.self_attn = HeadAttention(config.layer, width, qk_norm=True)
        self.post_attention_layernorm = LlamaRMSNorm(width, eps)
        self.mlp = HeadMlp(config.layer)

    def forward(
        self, hidden_BNE: torch.Tensor, rotary: tuple[torch.Tensor, torch.Tensor], attend: Attend
    ) -> torch.Tensor:
        hidden_BNE = hidden_BNE + self.self_attn(self.input_layernorm(hidden_BNE), rotary, attend)
        result: torch.Tensor = hidden_BNE + self.mlp(self.post_attention_layernorm(hidden_BNE))
        return result


def _attention_of(layer: Any) -> HeadAttention:
    attention: HeadAttention = layer.self_attn
    return attention
