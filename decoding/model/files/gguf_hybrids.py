"""What config.json would say of the models in GGUF files whose layers carry a state.

Knows what llama.cpp's converter leaves out: which layers attend is read off their tensors, and factors that it has
multiplied into the weights are 1. Invariant: a layer of which the file has no tensor is refused.
"""

from __future__ import annotations

from collections.abc import Mapping

from decoding.errors import ConfigError
from decoding.model.files.gguf_metadata import Fields, Metadata, rope_of, sections_of

ATTENDS = "attn_q.weight"


def lfm2(metadata: Metadata) -> Fields:
    kinds = _kinds(metadata, {"shortconv.conv.weight": "conv", ATTENDS: "full_attention"})
    kernel = metadata.count("shortconv.l_cache")
    _check(metadata, "shortconv.conv.weight", (metadata.count("embedding_length"), kernel))
    return {
        "layer_types": kinds,
        "norm_eps": metadata.number("attention.layer_norm_rms_epsilon"),
        "conv_L_cache": kernel,
        "conv_bias": _has(metadata, "shortconv.conv.bias"),
        "block_auto_adjust_ff_dim": False,  # the file has the width as it was adjusted
    }


def lfm2moe(metadata: Metadata) -> Fields:
    num_experts = metadata.count("expert_count")
    _check(metadata, "ffn_gate_inp.weight", (num_experts, metadata.count("embedding_length")))
    return lfm2(metadata) | {
        "num_dense_layers": int(metadata.number("leading_dense_block_count")),
        "num_experts": num_experts,
        "num_experts_per_tok": metadata.count("expert_used_count"),
        "moe_intermediate_size": metadata.count("expert_feed_forward_length"),
        "use_expert_bias": _has(metadata, "exp_probs_b.bias"),
        "norm_topk_prob": True,
    }


def qwen35(metadata: Metadata) -> Fields:
    num_heads, width = _heads(metadata)
    num_turned = metadata.count("rope.dimension_count")
    head_dim = metadata.count("attention.key_length")
    sections = sections_of(metadata, num_turned)
    return {
        "layer_types": _kinds(metadata, {"ssm_a": "linear_attention", ATTENDS: "full_attention"}),
        "linear_conv_kernel_dim": metadata.count("ssm.conv_kernel"),
        "linear_num_key_heads": metadata.count("ssm.group_count"),
        "linear_key_head_dim": metadata.count("ssm.state_size"),
        "linear_num_value_heads": num_heads,
        "linear_value_head_dim": width,
        # Told even where all is turned: without it transformers turns a quarter.
        "rope_parameters": rope_of(metadata, head_dim) | sections | {"partial_rotary_factor": num_turned / head_dim},
    }


def qwen35moe(metadata: Metadata) -> Fields:
    return qwen35(metadata) | {
        "num_experts": metadata.count("expert_count"),
        "num_experts_per_tok": metadata.count("expert_used_count"),
        "moe_intermediate_size": metadata.count("expert_feed_forward_length"),
        "shared_expert_intermediate_size": metadata.count("expert_shared_feed_forward_length"),
    }


def qwen3next(metadata: Metadata) -> Fields:
    return qwen35moe(metadata) | {"norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": []}


def granitehybrid(metadata: Metadata) -> Fields:
    """Raises ConfigError for Bamba, which names itself so and turns a part of each head."""
    num_heads, width = _heads(metadata)
    hidden_size = metadata.count("embedding_length")
    if num_heads * width % hidden_size:
        raise ConfigError(f"its ssm.inner_size is {num_heads * width}, no multiple of its embedding_length")
    head_dim = hidden_size // metadata.count("attention.head_count")
    is_turned = metadata.file.metadata.get("granitehybrid.rope.scaling.finetuned") is True
    if is_turned and metadata.count("rope.dimension_count", head_dim) != head_dim:
        raise ConfigError(
            "it turns a part of each head, which Granite does not: it may be a Bamba, which is not served"
        )
    has_experts = metadata.number("expert_count", 0) > 0
    gate = "ffn_gate_shexp.weight" if has_experts else "ffn_gate.weight"
    return _mamba(metadata) | {
        "layer_types": _kinds(metadata, {"ssm_a": "mamba", ATTENDS: "attention"}),
        "position_embedding_type": "rope" if is_turned else None,
        "mamba_expand": num_heads * width // hidden_size,
        "num_local_experts": metadata.count("expert_count") if has_experts else 0,
        "num_experts_per_tok": metadata.count("expert_used_count") if has_experts else 0,
        "shared_intermediate_size": _rows(metadata, gate),
        "attention_multiplier": metadata.number("attention.scale"),
        "embedding_multiplier": metadata.number("embedding_scale"),
        "residual_multiplier": metadata.number("residual_scale"),
        "logits_scaling": metadata.number("logit_scale"),
    }


def falcon_h1(metadata: Metadata) -> Fields:
    """Raises ConfigError where the head is the embedding: the file does not say what multiplies its logits."""
    if "output.weight" not in metadata.file.tensors:
        raise ConfigError(
            "it has no tensor output.weight, and does not say what its logits are multiplied by without it"
        )
    return _mamba(metadata) | {
        "mamba_d_ssm": metadata.count("ssm.inner_size"),
        "mamba_rms_norm": _has(metadata, "ssm_norm.weight"),
        "mamba_norm_before_gate": False,
        "attention_bias": _has(metadata, "attn_q.bias"),
        "mlp_bias": _has(metadata, "ffn_up.bias"),
        "projectors_bias": _has(metadata, "ssm_out.bias"),
    }


def nemotron_h(metadata: Metadata) -> Fields:
    num_heads, width = _heads(metadata)
    return {
        "layers_block_type": _kinds(metadata, {"ssm_a": "mamba", ATTENDS: "attention", "ffn_up.weight": "mlp"}),
        "layer_norm_epsilon": metadata.number("attention.layer_norm_rms_epsilon"),
        "mamba_num_heads": num_heads,
        "mamba_head_dim": width,
        "n_groups": metadata.count("ssm.group_count"),
        "ssm_state_size": metadata.count("ssm.state_size"),
        "conv_kernel": metadata.count("ssm.conv_kernel"),
        "use_conv_bias": _has(metadata, "ssm_conv1d.bias"),
        "use_bias": _has(metadata, "ssm_in.bias"),
        "mamba_proj_bias": _has(metadata, "ssm_in.bias"),
        "attention_bias": _has(metadata, "attn_q.bias"),
        "mlp_bias": _has(metadata, "ffn_up.bias"),
    }


def _mamba(metadata: Metadata) -> Fields:
    num_heads, width = _heads(metadata)
    return {
        "mamba_n_heads": num_heads,
        "mamba_d_head": width,
        "mamba_n_groups": metadata.count("ssm.group_count"),
        "mamba_d_state": metadata.count("ssm.state_size"),
        "mamba_d_conv": metadata.count("ssm.conv_kernel"),
        "mamba_conv_bias": _has(metadata, "ssm_conv1d.bias"),
        "mamba_proj_bias": _has(metadata, "ssm_in.bias"),
    }


def _heads(metadata: Metadata) -> tuple[int, int]:
    """How many heads a state has, and the width of a value. Raises ConfigError where what the file says of states is
    not what its tensors are."""
    num_heads, inner = metadata.count("ssm.time_step_rank"), metadata.count("ssm.inner_size")
    if inner % num_heads:
        raise ConfigError(f"its ssm.inner_size is {inner}, which cannot be cut into {num_heads} heads")
    num_channels = inner + 2 * metadata.count("ssm.group_count") * metadata.count("ssm.state_size")
    _check(metadata, "ssm_a", (num_heads,))
    _check(metadata, "ssm_out.weight", (metadata.count("embedding_length"), inner))
    _check(metadata, "ssm_conv1d.weight", (num_channels, metadata.count("ssm.conv_kernel")))
    return num_heads, inner // num_heads


def _check(metadata: Metadata, name: str, shape: tuple[int, ...]) -> None:
    """Raise ConfigError unless the first layer that has such a tensor has it in this shape: a model of any other would
    take memory that the file does not."""
    found = next((each for key, each in metadata.file.tensors.items() if _is_of_layer(key, name)), None)
    if found is None:
        raise ConfigError(f"none of its layers has a tensor {name}")
    own = tuple(size for size in found.shape if size > 1)
    if own != tuple(size for size in shape if size > 1):
        raise ConfigError(f"its metadata do not fit its tensors: {found.name} {found.shape} instead of {shape}")


def _kinds(metadata: Metadata, by_tensor: Mapping[str, str]) -> list[str]:
    """What each layer is. by_tensor: by a tensor that only such a layer has."""
    kinds = []
    for layer in range(metadata.num_layers):
        kind = next((kind for name, kind in by_tensor.items() if f"blk.{layer}.{name}" in metadata.file.tensors), None)
        if kind is None:
            raise ConfigError(f"its layer {layer} has none of the tensors {', '.join(by_tensor)}")
        kinds.append(kind)
    return kinds


def _has(metadata: Metadata, name: str) -> bool:
    """Whether any layer has a tensor of this name."""
    return any(_is_of_layer(each, name) for each in metadata.file.tensors)


def _is_of_layer(key: str, name: str) -> bool:
    return key.startswith("blk.") and key.split(".", 2)[-1] == name


def _rows(metadata: Metadata, name: str) -> int:
    """Of a matrix of the first layer. Raises ConfigError where there is none."""
    found = metadata.file.tensors.get(f"blk.0.{name}")
    if found is None:
        raise ConfigError(f"it has no tensor blk.0.{name}")
    return found.shape[0]
