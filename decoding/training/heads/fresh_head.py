"""Makes an untrained head: the target's widths, weights from the seed.

It starts as the target's own last layer, norm and output layer on the highest feature, as far as they have Llama's
names and shapes: a head would have to learn them first.
Invariant: the same target, draft vocabulary and seed give the same weights.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import LlamaConfig

from decoding.drafting.block.network import BlockHead
from decoding.drafting.eagle.head_config import HeadConfig, default_feature_layers
from decoding.drafting.eagle.network import EagleHead
from decoding.training.heads.target import OnlineTarget

DEFAULT_ROPE_THETA = 10000.0
SMALL = 0.1  # of what torch draws
OF_HIDDEN = {"hidden_norm.weight": "input_layernorm.weight", "input_layernorm.weight": ""}  # of the target's layers
# Shape suffixes: V the target's vocabulary, W the draft vocabulary.


def most_frequent_tokens(answers: Iterable[NDArray[np.int32]], num_tokens: int, size: int) -> Tensor:
    """int64 [W], ascending: the `size` most frequent tokens of the answers, of equally frequent ones the lower ids."""
    kept_W = np.sort(np.argsort(-counts_of(answers, num_tokens), kind="stable")[:size])
    return torch.from_numpy(kept_W.astype(np.int64))


def counts_of(answers: Iterable[NDArray[np.int32]], num_tokens: int) -> NDArray[np.int64]:
    """int64 [V]: how often the answers hold each token."""
    counts_V = np.zeros(num_tokens, np.int64)
    for tokens in answers:
        np.add.at(counts_V, tokens, 1)
    return counts_V


def new_head(target: OnlineTarget, target_ids_W: Tensor, seed: int) -> EagleHead:
    """A float32 head for a target, on its device. target_ids_W: int64, ascending, the tokens that the head drafts."""
    embeddings_VE = target.model.shared.embeddings.detach()
    config = HeadConfig(
        layer=layer_for(target.config, embeddings_VE.shape[0]),
        draft_vocab_size=len(target_ids_W),
        target_width=target.config.hidden_size,
        feature_layers=default_feature_layers(target.model.num_layers),
    )
    torch.manual_seed(seed)
    head = EagleHead(config, embeddings_VE.float().cpu())
    head.use_vocabulary(target_ids_W)
    with torch.no_grad():
        head.lm_head.weight.copy_(target.output_VE[target_ids_W.to(target.output_VE.device)])
        begin_as_target(head, target)
    return head.to(embeddings_VE.device)


def begin_as_target(head: EagleHead | BlockHead, target: OnlineTarget) -> None:
    """Let a new head's norm and layers begin as the target's last ones, on the highest of its features. Parts that have
    other names or shapes than Llama's stay as they are."""
    width = head.config.width
    if target.output_scale_E is not None:
        head.norm.weight.copy_(target.output_scale_E)
    head.fc.weight.mul_(SMALL)
    head.fc.weight[:, -width:] += torch.eye(width)
    for layer, found in zip(reversed(head.layers), reversed(target.last_layers), strict=False):
        _begin_as(layer, found)


def _begin_as(layer: nn.Module, found: Mapping[str, Tensor]) -> None:
    """Attention that has more parts than the layer's, as biases, means nothing without them. What reads the embedding
    beside the hidden state starts small."""
    weights = dict(layer.named_parameters())
    fits = all(name in weights for name in found if name.startswith("self_attn."))
    reads_both = "hidden_norm.weight" in weights
    for name, weight in weights.items():
        own = found.get(OF_HIDDEN.get(name, name) if reads_both else name)
        if own is None or (name.startswith("self_attn.") and not fits):
            continue
        if own.shape == weight.shape:
            weight.copy_(own)
        elif reads_both and weight.shape == (len(own), 2 * own.shape[-1]):
            weight.mul_(SMALL)
            weight[:, own.shape[1] :] = own


def layer_for(config: Any, vocab_size: int) -> LlamaConfig:
    """Of a target's widths. config: of its text model."""
    rope = getattr(config, "rope_parameters", None) or {}
    names = ("hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim", "max_position_embeddings")
    widths = {name: value for name in names if (value := getattr(config, name, None)) is not None}
    return LlamaConfig(
        **widths,
        vocab_size=vocab_size,
        intermediate_size=getattr(config, "intermediate_size", None) or 4 * config.hidden_size,
        rms_norm_eps=getattr(config, "rms_norm_eps", 1e-6),
        rope_parameters={"rope_type": "default", "rope_theta": rope.get("rope_theta", DEFAULT_ROPE_THETA)},
        num_hidden_layers=1,
        tie_word_embeddings=False,
    )
