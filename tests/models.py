"""Tiny random models for tests, built by transformers' own classes with unmodified modelling code.

Knows nothing of Gander. Weights are drawn large enough that logits differ clearly from token to token
and the argmax varies from position to position.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

VOCAB_SIZE = 199
SLIDING_WINDOW = 8
EOS_TOKEN_ID = 2

_COMMON: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": EOS_TOKEN_ID,
    "tie_word_embeddings": False,
}
_GROUPED: dict[str, Any] = {"num_key_value_heads": 2, "head_dim": 16}
_EXPERTS: dict[str, Any] = {"num_experts_per_tok": 2, "moe_intermediate_size": 32}
_LINEAR: dict[str, Any] = {
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
}
_MAMBA_2: dict[str, Any] = {
    "mamba_n_heads": 8,
    "mamba_d_head": 16,
    "mamba_n_groups": 2,
    "mamba_d_state": 16,
    "mamba_chunk_size": 8,
}

# What each type needs beyond (or instead of) _COMMON.
_PRESETS: dict[str, dict[str, Any]] = {
    "llama": {"num_key_value_heads": 2},
    "qwen2": {"num_key_value_heads": 2},
    "qwen3": _GROUPED,
    "mistral": _GROUPED | {"sliding_window": SLIDING_WINDOW},
    "gemma2": _GROUPED
    | {
        "sliding_window": SLIDING_WINDOW,
        "query_pre_attn_scalar": 16,
        "attn_logit_softcapping": 2.0,
        "num_hidden_layers": 4,
    },
    "gemma3_text": _GROUPED
    | {
        "sliding_window": SLIDING_WINDOW,
        "query_pre_attn_scalar": 16,
        "num_hidden_layers": 4,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
    },
    "gpt_neox": {},
    "gpt2": {},  # whose positions are learned
    "olmo2": {"num_key_value_heads": 2},
    "smollm3": {"num_key_value_heads": 2, "no_rope_layer_interval": 2},
    "phi3": {"num_key_value_heads": 2, "original_max_position_embeddings": 512},
    "mixtral": _GROUPED | {"num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen2_moe": {"num_key_value_heads": 2, "num_experts": 4, "shared_expert_intermediate_size": 64} | _EXPERTS,
    "qwen3_moe": _GROUPED | _EXPERTS | {"num_experts": 4},
    "gpt_oss": _GROUPED
    | {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": SLIDING_WINDOW, "num_hidden_layers": 4},
    "llama4_text": _GROUPED
    | {
        "num_local_experts": 4,
        "attention_chunk_size": SLIDING_WINDOW,
        "intermediate_size_mlp": 96,
        "num_hidden_layers": 4,
    },
    "deepseek_v3": {
        "num_key_value_heads": 4,
        "kv_lora_rank": 16,
        "q_lora_rank": 24,
        "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 8,
        "v_head_dim": 12,
        "n_routed_experts": 4,
        "n_group": 1,
        "topk_group": 1,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "first_k_dense_replace": 1,
    },
    "mimo": {"num_key_value_heads": 2},  # which only `tests.mtp` makes known to transformers
    "glm4_moe": _GROUPED
    | _EXPERTS
    | {"n_routed_experts": 4, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1, "use_qk_norm": True},
    # Types that Gander refuses.
    "bloom": {"n_layer": 3, "n_head": 4},
    "falcon": {},
    "gptj": {"n_embd": 64, "n_layer": 3, "n_head": 4, "n_positions": 512, "rotary_dim": 8},
    # Types whose layers carry a state.
    "lfm2": {
        "num_key_value_heads": 2,
        "layer_types": ["conv", "full_attention", "conv"],
        "block_auto_adjust_ff_dim": False,
    },
    "lfm2_moe": _EXPERTS
    | {
        "num_key_value_heads": 2,
        "layer_types": ["conv", "full_attention", "conv"],
        "num_experts": 4,
        "num_dense_layers": 1,
    },
    "qwen3_next": _GROUPED | _EXPERTS | _LINEAR | {"num_experts": 4, "shared_expert_intermediate_size": 32},
    "qwen3_5_text": _GROUPED | _LINEAR,
    "qwen3_5_moe_text": _GROUPED | _EXPERTS | _LINEAR | {"num_experts": 4, "shared_expert_intermediate_size": 32},
    "olmo_hybrid": {"num_key_value_heads": 2} | _LINEAR,
    "kimi_linear": _EXPERTS
    | {
        "linear_head_dim": 16,
        "linear_num_heads": 4,
        "num_key_value_heads": 4,
        "kv_lora_rank": 16,
        "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 8,
        "v_head_dim": 12,
        "num_local_experts": 4,
        "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    },
    "bamba": _GROUPED | _MAMBA_2 | {"attn_layer_indices": [1]},
    "granitemoehybrid": _GROUPED
    | _MAMBA_2
    | {"layer_types": ["mamba", "attention", "mamba"], "num_local_experts": 4, "shared_intermediate_size": 32},
    "falcon_h1": _GROUPED | _MAMBA_2 | {"mamba_d_ssm": 128},
    "nemotron_h": _GROUPED
    | {
        "layers_block_type": ["mamba", "mlp", "attention", "mamba"],
        "mamba_num_heads": 8,
        "mamba_head_dim": 16,
        "n_groups": 2,
        "ssm_state_size": 16,
        "chunk_size": 8,
    },
    "mamba2": {"num_heads": 8, "head_dim": 16, "state_size": 16, "n_groups": 2, "chunk_size": 8},
    "jamba": {
        "num_key_value_heads": 2,
        "attn_layer_period": 2,
        "attn_layer_offset": 1,
        "mamba_d_state": 16,
        "mamba_dt_rank": 8,
        "num_experts": 2,
        "num_experts_per_tok": 1,
    },
    "mamba": {"state_size": 16, "time_step_rank": 8},
}


def tiny(model_type: str, seed: int = 0, **overrides: Any) -> PreTrainedModel:
    """A random float32 model of `model_type` in evaluation mode, the same for the same arguments.

    overrides: configuration fields, over the preset's (`num_hidden_layers=1`, `vocab_size=512`, ...).
    """
    fields = _COMMON | _PRESETS[model_type] | overrides
    config = CONFIG_MAPPING[model_type](**fields)
    generator_state = torch.get_rng_state()
    torch.manual_seed(seed)
    try:
        model = AutoModelForCausalLM.from_config(config, attn_implementation=fields.get("attn_implementation"))
        _draw_weights(model)
    finally:
        torch.set_rng_state(generator_state)
    assert isinstance(model, PreTrainedModel)
    return model.eval()


def correlated(model_type: str, noise: float, **overrides: Any) -> PreTrainedModel:
    """`tiny` with noise on its matrices, as a part of their own spread: it agrees with `tiny` often, not always."""
    model = tiny(model_type, **overrides)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.add_(torch.randn(parameter.shape, generator=generator) * parameter.std() * noise)
    return model


def _draw_weights(model: PreTrainedModel) -> None:
    """Matrices keep their input's scale; vectors initialised to zero (biases, sinks) become small noise."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.copy_(torch.randn(parameter.shape) * parameter.shape[-1] ** -0.5)
            elif not parameter.any():
                parameter.copy_(torch.randn(parameter.shape) * 0.1)
        embedding = model.get_input_embeddings().weight
        embedding.copy_(torch.randn(embedding.shape))
        head = model.get_output_embeddings()
        if head is not None and head.weight is not embedding:
            head.weight.copy_(torch.randn(head.weight.shape) * 3 * head.weight.shape[-1] ** -0.5)
