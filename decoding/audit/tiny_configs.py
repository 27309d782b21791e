"""Small values for the configuration fields of transformers' causal language models, for the audit.

Pure data. A value is used if the type's configuration has the field.
"""

from __future__ import annotations

from typing import Any

_HEADS = {
    "num_attention_heads": 4,
    "n_head": 4,
    "num_heads": 4,
    "n_heads": 4,
    "num_key_value_heads": 2,
    "num_kv_heads": 2,
}
_WIDTHS = {
    "hidden_size": 64,
    "n_embd": 64,
    "d_model": 64,
    "word_embed_proj_dim": 64,
    "head_dim": 16,
    "global_head_dim": 16,
    "swa_head_dim": 16,
    "d_kv": 16,
    "rotary_dim": 8,
    "intermediate_size": 96,
    "ffn_dim": 96,
    "n_inner": 96,
    "d_ff": 96,
    "mlp_hidden_size": 96,
    "ffn_hidden_size": 96,
    "intermediate_size_mlp": 96,
    "hidden_size_per_layer_input": 8,
}
_LENGTHS = {
    "num_hidden_layers": 4,
    "n_layer": 4,
    "num_layers": 4,
    "n_layers": 4,
    "max_position_embeddings": 512,
    "n_positions": 512,
    "sliding_window": 8,
    "attention_chunk_size": 8,
    "use_sliding_window": True,
    "max_window_layers": 2,
    "sliding_window_pattern": 2,
    "num_nextn_predict_layers": 0,
    "num_kv_shared_layers": 0,
}
_TOKENS = {
    "vocab_size": 199,
    "vocab_size_per_layer_input": 199,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "is_decoder": True,
    "use_cache": True,
}
_EXPERTS = {
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
}
_LATENT = {
    "kv_lora_rank": 16,
    "q_lora_rank": 24,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 16,
    "index_n_heads": 2,
    "index_head_dim": 16,
    "index_topk": 512,
}
_STATES = {
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_head_dim": 16,
    "linear_num_heads": 4,
    "mamba_n_heads": 8,
    "mamba_num_heads": 8,
    "mamba_d_head": 16,
    "mamba_head_dim": 16,
    "mamba_d_ssm": 128,
    "mamba_n_groups": 2,
    "mamba_ngroups": 2,
    "n_groups": 2,
    "mamba_d_state": 16,
    "ssm_state_size": 16,
    "state_size": 16,
    "mamba_dt_rank": 8,
    "time_step_rank": 8,
    "mamba_chunk_size": 8,
    "chunk_size": 8,
    "attn_layer_period": 2,
    "attn_layer_offset": 1,
    "layer_group_size": 4,
    "adapter_rank": 8,
}
_NOISE = {
    "initializer_range": 0.2,
    "query_pre_attn_scalar": 16,
    "attention_dropout": 0.0,
    "resid_pdrop": 0.0,
    "embd_pdrop": 0.0,
    "attn_pdrop": 0.0,
    "hidden_dropout": 0.0,
}
SMALL_FIELDS: dict[str, Any] = _HEADS | _WIDTHS | _LENGTHS | _TOKENS | _EXPERTS | _LATENT | _STATES | _NOISE

OVERRIDES: dict[str, dict[str, Any]] = {
    "phi": {"num_key_value_heads": 4},
    "lfm2": {"layer_types": ["conv", "conv", "full_attention", "conv"], "block_auto_adjust_ff_dim": False},
    "lfm2_moe": {"layer_types": ["conv", "conv", "full_attention", "conv"], "num_dense_layers": 1},
    "lfm3": {"layer_types": ["conv", "conv", "full_attention", "conv"]},
    "bamba": {"attn_layer_indices": [2]},
    "granitemoehybrid": {"layer_types": ["mamba", "mamba", "attention", "mamba"]},
    "mamba2": {"num_heads": 8},
    "nemotron_h": {
        "layers_block_type": ["mamba", "moe", "attention", "mamba"],
        "moe_shared_expert_intermediate_size": 32,
    },
    "zamba2": {
        "layers_block_type": ["mamba", "hybrid", "mamba", "hybrid"],
        "n_mamba_heads": 8,
        "num_key_value_heads": 4,
    },
    "zamba": {"num_hidden_layers": 5, "num_key_value_heads": 4},
    "bailing_hybrid": {"num_key_value_heads": 4},
    "zaya": {"num_experts_per_tok": 1},
    "qwen4_exp_text": {
        "indexer_n_heads": 2,
        "indexer_kv_heads": 1,
        "indexer_head_dim": 16,
        "indexer_budget": 16,
        "indexer_compress_ratio": 4,
    },
    "deepseek_v2": {"num_key_value_heads": 4},
    "deepseek_v3": {"num_key_value_heads": 4},
    "gemma3n_text": {
        "laurel_rank": 8,
        "altup_num_inputs": 2,
        "num_kv_shared_layers": 2,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "activation_sparsity_pattern": [0.0] * 4,
    },
}
