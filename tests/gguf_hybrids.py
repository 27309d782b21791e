"""How llama.cpp's converter writes layers that carry a state: what it moves, multiplies and splits.

Knows nothing of Gander.
"""

from __future__ import annotations

from typing import Any

import gguf
import torch

STATEFUL = ("lfm2", "lfm2moe", "qwen3next", "qwen35", "qwen35moe", "granitehybrid", "falcon-h1", "nemotron_h")
QWEN, TILED = ("qwen3next", "qwen35", "qwen35moe"), ("qwen35", "qwen35moe")
ATTENDING = ("full_attention", "attention", "hybrid")
Tensors = dict[str, torch.Tensor]


def written(name: str, numbers: torch.Tensor, config: Any, architecture: str) -> torch.Tensor:
    """A parameter's numbers as the file has them, but for their shape."""
    if architecture in TILED and "linear_attn" in name:
        return _tiled(name, numbers, config)
    if architecture == "falcon-h1":
        return _multiplied(name, numbers, config)
    return numbers


def hybrid_tensors(name: str, numbers: torch.Tensor, config: Any, architecture: str) -> Tensors | None:
    """The file's tensors of one parameter; None where its name and shape follow from gguf's map."""
    if architecture not in STATEFUL:
        return None
    block = f"blk.{name.split('.')[2]}." if ".layers." in name else ""
    end = name.rpartition(".")[2]
    if end == "A_log":
        values = -numbers.exp()
        return {f"{block}ssm_a": values if architecture in QWEN else values[:, None]}
    if end == "D":
        return {f"{block}ssm_d": numbers[:, None]}
    if end == "dt_bias":
        return {f"{block}ssm_dt.bias": numbers}
    if end == "expert_bias":
        return {f"{block}exp_probs_b.bias": numbers}
    if name.endswith("conv1d.weight"):
        return {f"{block}ssm_conv1d.weight": numbers[:, 0]}
    if name.endswith("conv.conv.weight"):
        return {f"{block}shortconv.conv.weight": numbers[:, 0]}
    if name.endswith(("mamba.norm.weight", "mixer.norm.weight")):
        groups = getattr(config, "mamba_n_groups", getattr(config, "n_groups", 1))
        return {f"{block}ssm_norm.weight": numbers.reshape(groups, -1)}
    if name.endswith("pre_ff_layernorm.weight"):
        return {f"{block}ffn_norm": numbers}
    if name.endswith("in_proj_qkvz.weight"):
        return _split_qkvz(block, numbers, config)
    if name.endswith("router.weight"):
        return {f"{block}ffn_gate_inp.weight": numbers}
    if name.endswith("shared_mlp.input_linear.weight"):
        gate, up = numbers.chunk(2)
        shared = "_shexp" if config.num_local_experts else ""
        return {f"{block}ffn_gate{shared}.weight": gate, f"{block}ffn_up{shared}.weight": up}
    if name.endswith("shared_mlp.output_linear.weight"):
        return {f"{block}ffn_down{'_shexp' if config.num_local_experts else ''}.weight": numbers}
    return None


def describe_states(writer: gguf.GGUFWriter, config: Any, architecture: str) -> None:
    """Also how many heads have keys, which is 0 in layers that do not attend."""
    if architecture not in STATEFUL:
        writer.add_head_count_kv(config.num_key_value_heads)
        return
    kinds = config.layer_types
    writer.add_head_count_kv([config.num_key_value_heads if kind in ATTENDING else 0 for kind in kinds])
    if architecture.startswith("lfm2"):
        writer.add_shortconv_l_cache(config.conv_L_cache)
        if architecture == "lfm2moe":
            writer.add_leading_dense_block_count(config.num_dense_layers)
        return
    if architecture in QWEN:
        writer.add_ssm_conv_kernel(config.linear_conv_kernel_dim)
        writer.add_ssm_state_size(config.linear_key_head_dim)
        writer.add_ssm_group_count(config.linear_num_key_heads)
        writer.add_ssm_time_step_rank(config.linear_num_value_heads)
        writer.add_ssm_inner_size(config.linear_value_head_dim * config.linear_num_value_heads)
        return
    is_nemotron = architecture == "nemotron_h"
    num_heads = config.mamba_num_heads if is_nemotron else config.mamba_n_heads
    writer.add_ssm_conv_kernel(config.conv_kernel if is_nemotron else config.mamba_d_conv)
    writer.add_ssm_state_size(config.ssm_state_size if is_nemotron else config.mamba_d_state)
    writer.add_ssm_group_count(config.n_groups if is_nemotron else config.mamba_n_groups)
    writer.add_ssm_time_step_rank(num_heads)
    writer.add_ssm_inner_size(num_heads * (config.mamba_head_dim if is_nemotron else config.mamba_d_head))
    if architecture == "granitehybrid":
        writer.add_attention_scale(config.attention_multiplier)
        writer.add_embedding_scale(config.embedding_multiplier)
        writer.add_residual_scale(config.residual_multiplier)
        writer.add_logit_scale(config.logits_scaling)
        writer.add_rope_scaling_finetuned(config.position_embedding_type == "rope")


def _tiled(name: str, numbers: torch.Tensor, config: Any) -> torch.Tensor:
    """Value heads of one key head apart, one of each key head in turns."""
    num_keys, num_values = config.linear_num_key_heads, config.linear_num_value_heads
    width, first = config.linear_value_head_dim, 0
    if "in_proj_qkv" in name or "conv1d" in name:
        first = 2 * num_keys * config.linear_key_head_dim
    elif name.endswith(("in_proj_a.weight", "in_proj_b.weight", "A_log", "dt_bias")):
        width = 1
    elif name.endswith("out_proj.weight"):
        columns = numbers.reshape(len(numbers), num_keys, num_values // num_keys, width)
        return columns.transpose(1, 2).reshape(numbers.shape)
    elif not name.endswith("in_proj_z.weight"):
        return numbers
    moved = numbers[first:].reshape(num_keys, num_values // num_keys, width, *numbers.shape[1:])
    return torch.cat([numbers[:first], moved.transpose(0, 1).reshape(numbers[first:].shape)])


def _split_qkvz(block: str, numbers: torch.Tensor, config: Any) -> Tensors:
    """By key head: queries, keys, values, gates. In the file all queries come first, and gates are apart."""
    num_keys, key_dim = config.linear_num_key_heads, config.linear_key_head_dim
    value_dim = config.linear_num_value_heads // num_keys * config.linear_value_head_dim
    by_head = numbers.reshape(num_keys, -1, numbers.shape[1])
    parts = by_head.split([key_dim, key_dim, value_dim, value_dim], dim=1)
    query, key, value, gate = (part.reshape(-1, numbers.shape[1]) for part in parts)
    return {f"{block}attn_qkv.weight": torch.cat([query, key, value]), f"{block}attn_gate.weight": gate}


def _multiplied(name: str, numbers: torch.Tensor, config: Any) -> torch.Tensor:
    """Falcon-H1's weights, with the factors of its configuration."""
    inner, state = config.mamba_d_ssm, config.mamba_n_groups * config.mamba_d_state
    by_end = {
        "down_proj.weight": config.mlp_multipliers[1],
        "gate_proj.weight": config.mlp_multipliers[0],
        "k_proj.weight": config.key_multiplier * config.attention_in_multiplier,
        "q_proj.weight": config.attention_in_multiplier,
        "v_proj.weight": config.attention_in_multiplier,
        "o_proj.weight": config.attention_out_multiplier,
        "out_proj.weight": config.ssm_out_multiplier,
        "in_proj.weight": config.ssm_in_multiplier,
        "lm_head.weight": config.lm_head_multiplier,
        "embed_tokens.weight": config.embedding_multiplier,
    }
    factor = next((factor for end, factor in by_end.items() if name.endswith(f"{end}")), 1.0)
    if name.endswith("in_proj.weight"):
        parts = numbers.split([inner, inner, state, state, config.mamba_n_heads])
        numbers = torch.cat([part * each for part, each in zip(parts, config.ssm_multipliers, strict=True)])
    return numbers * factor
