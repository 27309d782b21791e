"""Writes tiny models as GGUF files, with gguf's own writer, laid out as llama.cpp's converter does.

Knows nothing of Gander.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import gguf
import numpy as np
import pytest
import torch
import transformers
from gguf.quants import quantize
from packaging.version import Version
from transformers import PreTrainedModel

from tests.gguf_hybrids import QWEN, describe_states, hybrid_tensors, written

VOCAB_SIZE = 320
TOKENS = ["<unk>", "<s>", "<|im_end|>"]
CONTROL, NORMAL = gguf.TokenType.CONTROL, gguf.TokenType.NORMAL
EPSILONS = ("rms_norm_eps", "norm_eps", "layer_norm_epsilon")
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
)
NAMES = {"mistral": "llama", "mixtral": "llama", "qwen2_moe": "qwen2moe", "qwen3_moe": "qwen3moe"} | {
    "gemma3_text": "gemma3",
    "gpt_oss": "gpt-oss",
    "lfm2_moe": "lfm2moe",
    "qwen3_next": "qwen3next",
    "qwen2_vl_text": "qwen2vl",
    "qwen2_5_vl_text": "qwen2vl",
    "qwen3_vl_text": "qwen3vl",
    "qwen3_vl_moe_text": "qwen3vlmoe",
    "qwen3_5_text": "qwen35",
    "qwen3_5_moe_text": "qwen35moe",
    "granitemoehybrid": "granitehybrid",
    "falcon_h1": "falcon-h1",
}


class Encoding(NamedTuple):
    """number: of the type. values: of a block. encode: from [..., values] to the blocks' bytes."""

    number: int
    values: int
    encode: Callable[[np.ndarray], np.ndarray]


def encoding_of(name: str) -> Encoding:
    number = gguf.GGMLQuantizationType[name]
    return Encoding(number, gguf.GGML_QUANT_SIZES[number][0], lambda numbers: quantize(numbers, number))


def write_gguf(
    path: Path,
    model: PreTrainedModel,
    kind: str | Encoding = "F32",
    metadata: dict[str, Any] | None = None,
    others: dict[str, str] | None = None,
    more: dict[str, np.ndarray] | None = None,
    tokenizer: Callable[[gguf.GGUFWriter, int], None] | None = None,
) -> Path:
    """kind: of the matrices whose rows are whole blocks of it, by gguf's name, or one that gguf does not know.
    metadata: further keys. others: kinds of some tensors, by what comes after the layer's number. more: further
    tensors. tokenizer: adds another one than the usual. Skips the test where transformers is too old for a tokenizer of
    a file."""
    if Version(transformers.__version__) < Version("5.19"):
        pytest.skip("a GGUF file's tokenizer needs transformers>=5.19")
    config = model.config
    architecture = NAMES.get(config.model_type, config.model_type)
    writer = gguf.GGUFWriter(path, architecture)
    _describe(writer, config, architecture)
    (tokenizer or _add_tokenizer)(writer, config.vocab_size)
    for key, value in (metadata or {}).items():
        writer.add_key_value(key, value, gguf.GGUFValueType.get_type(value))
    for name, numbers in (tensors_of(model, architecture) | (more or {})).items():
        own = (others or {}).get(name.split(".", 2)[-1], kind)
        encoding = encoding_of(own) if isinstance(own, str) else own
        is_matrix = numbers.ndim > 1 and "weight" in name and "_norm." not in name
        if is_matrix and own != "F32" and numbers.shape[-1] % encoding.values == 0:
            writer.add_tensor(name, encoding.encode(numbers), raw_dtype=encoding.number)  # type: ignore[arg-type]
        else:
            writer.add_tensor(name, numbers)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def tensors_of(model: PreTrainedModel, architecture: str) -> dict[str, np.ndarray]:
    """The model's numbers by llama.cpp's names."""
    config = model.config
    number = next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    name_map = gguf.get_tensor_name_map(number, config.num_hidden_layers)
    found = {}
    for name, tensor in model.state_dict().items():
        numbers = tensor.detach().float()
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        numbers = written(name, numbers, config, architecture)
        hybrid = hybrid_tensors(name, numbers, config, architecture)
        if hybrid is not None:
            found |= hybrid
            continue
        if ".experts." in name:
            found |= _experts(name, numbers, config.model_type)
            continue
        base, _, suffix = name.rpartition(".")
        theirs = name_map.get_name(base) if suffix in ("weight", "bias") else name_map.get_name(name)
        theirs = theirs or name_map.get_name(base.replace("model.", "backbone."))
        assert theirs is not None, name
        if architecture in ("llama", "smollm3", "granitehybrid", "nemotron_h") and (
            "q_proj" in name or "k_proj" in name
        ):
            heads = config.num_attention_heads if "q_proj" in name else config.num_key_value_heads
            numbers = numbers.reshape(heads, 2, -1, *numbers.shape[1:]).swapaxes(1, 2).reshape(numbers.shape)
        if architecture.startswith(("gemma", *QWEN)) and name.endswith("norm.weight") and "linear_attn" not in name:
            numbers = numbers + 1
        if name.endswith("shared_expert_gate.weight"):
            numbers = numbers[0]
        found[f"{theirs}.{suffix if suffix == 'bias' else 'weight'}"] = numbers
    return {name: np.ascontiguousarray(numbers.numpy()) for name, numbers in found.items()}


def _experts(name: str, numbers: torch.Tensor, model_type: str) -> dict[str, torch.Tensor]:
    block = f"blk.{name.split('.')[2]}"
    if model_type == "gpt_oss":
        suffix = "bias" if name.endswith("bias") else "weight"
        numbers = numbers if suffix == "bias" else numbers.transpose(1, 2)
        if "gate_up" in name:
            return {
                f"{block}.ffn_{part}_exps.{suffix}": numbers[:, start::2] for part, start in (("gate", 0), ("up", 1))
            }
        return {f"{block}.ffn_down_exps.{suffix}": numbers}
    if "gate_up" in name:
        gate, up = numbers.chunk(2, 1)
        return {f"{block}.ffn_gate_exps.weight": gate, f"{block}.ffn_up_exps.weight": up}
    return {f"{block}.ffn_down_exps.weight": numbers}


def _describe(writer: gguf.GGUFWriter, config: Any, architecture: str) -> None:
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    if hasattr(config, "intermediate_size"):
        writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    describe_states(writer, config, architecture)
    writer.add_layer_norm_rms_eps(next(getattr(config, name) for name in EPSILONS if hasattr(config, name)))
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer.add_key_length(head_dim)
    rope = getattr(config, "rope_parameters", {"rope_theta": 10_000.0})
    rope = rope.get("full_attention", rope)
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_rope_dimension_count(int(head_dim * rope.get("partial_rotary_factor", 1.0)))
    if "mrope_section" in rope:
        writer.add_rope_dimension_sections([*rope["mrope_section"], 0])
    if rope.get("rope_type") == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(rope["factor"])
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    if getattr(config, "sliding_window", None) and architecture in ("gemma2", "gemma3", "gpt-oss"):
        writer.add_sliding_window(config.sliding_window)
    if architecture == "gemma2":
        writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
        writer.add_final_logit_softcapping(config.final_logit_softcapping)
    num_experts = getattr(config, "num_local_experts", None) or getattr(config, "num_experts", None)
    if num_experts:
        writer.add_expert_count(num_experts)
        writer.add_expert_used_count(config.num_experts_per_tok)
        inner = getattr(config, "moe_intermediate_size", config.intermediate_size)
        writer.add_expert_feed_forward_length(inner)
        if hasattr(config, "shared_expert_intermediate_size"):
            writer.add_expert_shared_feed_forward_length(config.shared_expert_intermediate_size)


def _add_tokenizer(writer: gguf.GGUFWriter, num_tokens: int) -> None:
    """A vocabulary of GPT-2's letters for bytes, and of pairs of letters."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    letters = [chr(byte) for byte in printable] + [chr(256 + place) for place in range(len(others))]
    num_pairs = num_tokens - len(TOKENS) - len(letters)
    pairs = [(first, second) for first in "abcdefgh" for second in "abcdefgh"][:num_pairs]
    assert len(pairs) == num_pairs, num_tokens
    tokens = [*TOKENS, *letters, *map("".join, pairs)]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    writer.add_token_types([CONTROL] * len(TOKENS) + [NORMAL] * (num_tokens - len(TOKENS)))
    writer.add_token_merges(list(map(" ".join, pairs)))
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(True)
    writer.add_chat_template(CHAT_TEMPLATE)
