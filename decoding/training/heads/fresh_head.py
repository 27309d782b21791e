"""Makes an untrained head: the target's widths, weights from the seed.

The output layer and the norm before it start as the target's own, since a head would have to learn them first.
Invariant: the same target, draft vocabulary and seed give the same weights.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import LlamaConfig

from decoding.drafting.eagle.head_config import HeadConfig, default_feature_layers
from decoding.drafting.eagle.network import EagleHead
from decoding.training.heads.target import OnlineTarget

DEFAULT_ROPE_THETA = 10000.0
# Shape suffixes: V the target's vocabulary, W the draft vocabulary.


def most_frequent_tokens(answers: Iterable[NDArray[np.int32]], num_tokens: int, size: int) -> Tensor:
    """int64 [W], ascending: the `size` most frequent tokens of the answers, of equally frequent ones the lower ids."""
    counts_V = np.zeros(num_tokens, np.int64)
    for tokens in answers:
        np.add.at(counts_V, tokens, 1)
    kept_W = np.sort(np.argsort(-counts_V, kind="stable")[:size])
    return torch.from_numpy(kept_W.astype(np.int64))


def new_head(target: OnlineTarget, target_ids_W: Tensor, seed: int) -> EagleHead:
    """A float32 head for a target, on its device. target_ids_W: int64, ascending, the tokens that the head drafts."""
    embeddings_VE = target.model.embeddings.detach()
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
        if target.output_scale_E is not None:
            head.norm.weight.copy_(target.output_scale_E)
    return head.to(embeddings_VE.device)


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
