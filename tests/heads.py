"""Tiny EAGLE-3 heads for tests."""

from __future__ import annotations

from typing import Any

import torch
from transformers import PreTrainedModel

from decoding.drafting.eagle.head_config import default_feature_layers, read_config
from decoding.drafting.eagle.network import EagleHead
from tests.models import VOCAB_SIZE

LAYER: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 512,
    "vocab_size": VOCAB_SIZE,
}
NUM_LAYERS = 3  # of the tiny targets


def fields_of(**changes: Any) -> dict[str, Any]:
    """config.json in EAGLE's layout; a change to None takes the field away."""
    fields = {"architectures": ["LlamaForCausalLMEagle3"], **LAYER, "draft_vocab_size": 120, **changes}
    return {name: value for name, value in fields.items() if value is not None}


def new_head(embeddings_VE: torch.Tensor, fields: dict[str, Any] | None = None, seed: int = 0) -> EagleHead:
    """Random weights; its draft vocabulary leaves out tokens of the beginning, the middle and the end."""
    state = torch.get_rng_state()
    torch.manual_seed(seed)
    try:
        config = read_config(fields or fields_of(), NUM_LAYERS)
        head = EagleHead(config, embeddings_VE)
        if config.draft_vocab_size < config.vocab_size:
            head.use_vocabulary(torch.randperm(config.vocab_size)[: config.draft_vocab_size].sort().values)
    finally:
        torch.set_rng_state(state)
    return head


def features_of(model: PreTrainedModel, ids_BN: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Of transformers' own forward: [B, N, F], what a head is fed with, and the logits [B, N, V]."""
    layers = default_feature_layers(model.config.num_hidden_layers)
    found: dict[int, torch.Tensor] = {}
    decoder = next(module for module in model.modules() if hasattr(module, "layers"))
    hooks = [
        decoder.layers[layer - 1].register_forward_hook(
            lambda _module, _inputs, output, layer=layer: found.__setitem__(
                layer, output[0] if isinstance(output, tuple) else output
            )
        )
        for layer in layers
    ]
    with torch.no_grad():
        logits_BNV = model(input_ids=ids_BN, use_cache=False).logits
    for hook in hooks:
        hook.remove()
    return torch.cat([found[layer] for layer in layers], dim=-1), logits_BNV
