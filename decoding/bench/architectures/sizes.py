"""The sizes of published models, of which a few layers are enough where all of them would not fit. Pure data.

Invariant: a configuration with fewer layers has the first ones of the published order.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from transformers import PreTrainedConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING


class Size(NamedTuple):
    """num_layers: that are measured unless others are asked for."""

    model_type: str
    num_layers: int
    fields: dict[str, Any]


_TOKENS = {"eos_token_id": None, "bos_token_id": None, "pad_token_id": None, "max_position_embeddings": 1024}
_LFM2_ATTENDS = (2, 5, 8, 10, 12, 14)

SIZES = {
    "qwen3.5-0.8b": Size(
        "qwen3_5_text",
        24,
        {
            "vocab_size": 248_320,
            "hidden_size": 1024,
            "intermediate_size": 3584,
            "num_attention_heads": 8,
            "num_key_value_heads": 2,
            "head_dim": 256,
            "linear_num_key_heads": 16,
            "linear_num_value_heads": 16,
            "tie_word_embeddings": True,
        },
    ),
    "lfm2-350m": Size(
        "lfm2",
        16,
        {
            "vocab_size": 65_536,
            "hidden_size": 1024,
            "intermediate_size": 6656,
            "num_attention_heads": 16,
            "num_key_value_heads": 8,
            "full_attn_idxs": list(_LFM2_ATTENDS),
            "tie_word_embeddings": True,
        },
    ),
    "qwen3-30b-a3b": Size(
        "qwen3_moe",
        2,
        {
            "vocab_size": 16_384,  # of 151,936: the head would be most of so few layers
            "hidden_size": 2048,
            "intermediate_size": 6144,
            "moe_intermediate_size": 768,
            "num_experts": 128,
            "num_experts_per_tok": 8,
            "num_attention_heads": 32,
            "num_key_value_heads": 4,
            "head_dim": 128,
            "norm_topk_prob": True,
            "tie_word_embeddings": False,
        },
    ),
    "qwen3-moe-small": Size(
        "qwen3_moe",
        6,
        {
            "vocab_size": 8192,
            "hidden_size": 1024,
            "intermediate_size": 2048,
            "moe_intermediate_size": 512,
            "num_experts": 64,
            "num_experts_per_tok": 8,
            "num_attention_heads": 16,
            "num_key_value_heads": 4,
            "head_dim": 64,
            "norm_topk_prob": True,
            "tie_word_embeddings": False,
        },
    ),
}


def config_of(size: Size, num_layers: int | None = None, **fields: Any) -> PreTrainedConfig:
    """The configuration of a size with its first `num_layers`. fields: over those of the size."""
    own = _TOKENS | size.fields | {"num_hidden_layers": num_layers or size.num_layers} | fields
    config: PreTrainedConfig = CONFIG_MAPPING[size.model_type](**own)
    return config
