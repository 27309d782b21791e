"""What config.json would say of the model in a GGUF file: its metadata under transformers' names.

Owns the architectures that are served. Metadata keys: ggml's docs/gguf.md and llama.cpp's src/llama-arch.cpp; what
files do not say, llama.cpp's src/llama-model.cpp knows. Invariant: counts are sized by tensors that the file has.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from decoding.errors import ConfigError
from decoding.model.files import gguf_hybrids as hybrids
from decoding.model.files.gguf_file import GgufFile, Strings
from decoding.model.files.gguf_metadata import (
    LARGEST,
    LONG_FACTORS,
    ROPE_FACTORS,
    SHORT_FACTORS,
    Fields,
    Metadata,
    rope_of,
    sections_of,
    shown,
)

CLIP = "clip"  # the architecture of a projector's file, whatever its tower is
EMBEDDING, HEAD = "token_embd.weight", "output.weight"
# Tensors that become part of the configuration.
IN_CONFIG = frozenset((ROPE_FACTORS, LONG_FACTORS, SHORT_FACTORS))
END_TOKENS = (  # how llama.cpp recognises further tokens that end a reply (llama-vocab.cpp, special_eog_ids)
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "<|end_of_text|>",
    "<end_of_utterance>",
)


def _nothing(_metadata: Metadata) -> Fields:
    return {}


@dataclass(frozen=True, slots=True)
class Architecture:
    """model_type: transformers' name. more: configuration fields beyond the common ones. permutes: llama.cpp's
    converter has put the rows of query and key projections pair by pair. norm_offset: what the file's norms have more
    than transformers'."""

    model_type: str
    more: Callable[[Metadata], Fields] = _nothing
    permutes: bool = False
    norm_offset: float = 0.0


def architecture_of(file: GgufFile) -> Architecture:
    """Raises ConfigError with the architecture's name where it is not served."""
    found = ARCHITECTURES.get(file.architecture)
    if file.architecture == CLIP:
        raise ConfigError("it is the projector (mmproj) of a model: give the model's file, and this one by --mmproj")
    if found is None:
        served = ", ".join(ARCHITECTURES)
        raise ConfigError(f"its architecture is {file.architecture!r}; those that are served are {served}")
    if file.architecture == "llama" and Metadata(file).has("expert_count"):
        return MIXTRAL
    return found


def config_of(file: GgufFile) -> Fields:
    """The fields of config.json. Raises ConfigError naming the metadata key or tensor at fault."""
    architecture, metadata = architecture_of(file), Metadata(file)
    embedding = file.tensors.get(EMBEDDING)
    if embedding is None or len(embedding.shape) != 2:
        raise ConfigError(f"it has no matrix {EMBEDDING}")
    num_layers = metadata.num_layers
    if num_layers > len(file.tensors):
        raise ConfigError(f"its metadata claims {num_layers} layers, and it has {len(file.tensors)} tensors")
    hidden_size, num_heads = metadata.count("embedding_length"), metadata.count("attention.head_count")
    if hidden_size != embedding.shape[1]:
        raise ConfigError(f"its embedding_length is {hidden_size}, and {EMBEDDING} has {embedding.shape[1]} columns")
    if num_heads > hidden_size:
        raise ConfigError(f"its attention.head_count is {num_heads}, more than its embedding_length")
    head_dim = metadata.count("attention.key_length", hidden_size // num_heads)
    widest = max((tensor.shape[0] for name, tensor in file.tensors.items() if ".attn_q" in name), default=0)
    if head_dim > widest:
        raise ConfigError(f"its heads are {head_dim} wide, and its widest matrix of queries has {widest} rows")
    fields: Fields = {
        "model_type": architecture.model_type,
        "vocab_size": embedding.shape[0],
        "hidden_size": hidden_size,
        "num_hidden_layers": num_layers,
        "num_attention_heads": num_heads,
        "num_key_value_heads": metadata.count("attention.head_count_kv", num_heads),
        "head_dim": head_dim,
        "max_position_embeddings": metadata.count("context_length"),
        "rms_norm_eps": metadata.number("attention.layer_norm_rms_epsilon"),
        "tie_word_embeddings": HEAD not in file.tensors,
        "rope_parameters": rope_of(metadata, head_dim),
        "dtype": "bfloat16",
        "bos_token_id": None,
        "pad_token_id": None,
        **token_ids(file),
    }
    if metadata.has("feed_forward_length"):
        fields["intermediate_size"] = metadata.count("feed_forward_length")
    return fields | architecture.more(metadata)


def token_ids(file: GgufFile) -> Fields:
    """bos_token_id, pad_token_id, and as eos_token_id all that end a reply."""
    tokens = file.metadata.get("tokenizer.ggml.tokens")
    known = {
        name: file.metadata.get(f"tokenizer.ggml.{name}_token_id") for name in ("bos", "padding", "eos", "eot", "eom")
    }
    for name, value in known.items():
        if value is not None and (type(value) is not int or not 0 <= value <= LARGEST):
            raise ConfigError(f"tokenizer.ggml.{name}_token_id is {shown(value)}; it must be an id")
    ends = [known[name] for name in ("eos", "eot", "eom") if known[name] is not None]
    if isinstance(tokens, Strings):  # whatever their types, which some files have wrong
        marked = {name: place for place, name in enumerate(tokens) if name in END_TOKENS}
        named = [marked[name] for name in END_TOKENS if name in marked]
        if {"<|return|>", "<|call|>", "<|end|>"} <= marked.keys():  # of gpt-oss, where <|end|> ends a part of a reply
            named.remove(marked["<|end|>"])
            ends = [each for each in ends if each != marked["<|end|>"]]
        ends += named
    ids = {"bos_token_id": known["bos"], "pad_token_id": known["padding"], "eos_token_id": list(dict.fromkeys(ends))}
    return {name: value for name, value in ids.items() if value not in (None, [])}


def _llama(metadata: Metadata) -> Fields:
    names = metadata.file.tensors
    return {"attention_bias": "blk.0.attn_q.bias" in names, "mlp_bias": "blk.0.ffn_up.bias" in names}


def _experts(metadata: Metadata) -> Fields:
    return {
        "moe_intermediate_size": metadata.count("expert_feed_forward_length"),
        "num_experts": metadata.count("expert_count"),
        "num_experts_per_tok": metadata.count("expert_used_count"),
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    }


def _qwen2moe(metadata: Metadata) -> Fields:
    shared = metadata.count("expert_shared_feed_forward_length")
    return _experts(metadata) | {"shared_expert_intermediate_size": shared, "norm_topk_prob": False}


def _qwen3moe(metadata: Metadata) -> Fields:
    return _experts(metadata) | {"norm_topk_prob": True}


def _qwen2vl(metadata: Metadata) -> Fields:
    head_dim = metadata.count("attention.key_length", _width_of_heads(metadata))
    return {"rope_parameters": rope_of(metadata, head_dim) | sections_of(metadata, head_dim)}


def _qwen3vlmoe(metadata: Metadata) -> Fields:
    return _experts(metadata) | _qwen2vl(metadata)


def _mixtral(metadata: Metadata) -> Fields:
    return {
        "num_local_experts": metadata.count("expert_count"),
        "num_experts_per_tok": metadata.count("expert_used_count"),
        "sliding_window": None,
    }


def _width_of_heads(metadata: Metadata) -> int:
    """Where the file does not say another one."""
    return metadata.count("embedding_length") // metadata.count("attention.head_count")


def _gemma_scale(metadata: Metadata, largest: int) -> int:
    """What transformers calls query_pre_attn_scalar: the width of a head, except in the largest model."""
    heads = _width_of_heads(metadata)
    return heads if metadata.count("block_count") == largest else metadata.count("attention.key_length", heads)


def _gemma2(metadata: Metadata) -> Fields:
    return {
        "sliding_window": metadata.count("attention.sliding_window"),
        "query_pre_attn_scalar": _gemma_scale(metadata, 46),
        "attn_logit_softcapping": metadata.number("attn_logit_softcapping", 50.0),
        "final_logit_softcapping": metadata.number("final_logit_softcapping", 30.0),
    }


def _gemma3(metadata: Metadata) -> Fields:
    local = {"rope_type": "default", "rope_theta": metadata.number("rope.freq_base_swa", 10_000.0)}
    head_dim = metadata.count("attention.key_length", 256)
    base = {"rope_theta": metadata.number("rope.freq_base", 1_000_000.0)}
    fields: Fields = {
        "sliding_window": metadata.count("attention.sliding_window"),
        "query_pre_attn_scalar": _gemma_scale(metadata, 62),
        "rope_parameters": {
            "sliding_attention": local,
            "full_attention": rope_of(metadata, head_dim) | base,
        },
    }
    if metadata.has("final_logit_softcapping"):
        fields["final_logit_softcapping"] = metadata.number("final_logit_softcapping")
    return fields


def _phi3(metadata: Metadata) -> Fields:
    longest = metadata.count("context_length")
    fields: Fields = {
        "original_max_position_embeddings": metadata.count("rope.scaling.original_context_length", longest),
        "sliding_window": None,
    }
    if metadata.has("attention.sliding_window") and metadata.count("attention.sliding_window") < longest:
        fields["sliding_window"] = metadata.count("attention.sliding_window")
    return fields


def _olmo2(metadata: Metadata) -> Fields:
    if metadata.has("attention.sliding_window"):
        raise ConfigError("it is an OLMo 3, whose window is not served: its architecture is told to be OLMo 2's")
    return {}


def _gpt_oss(metadata: Metadata) -> Fields:
    rope = rope_of(metadata, metadata.count("attention.key_length", 64))
    return {
        "rope_parameters": rope | ({"truncate": False} if rope["rope_type"] == "yarn" else {}),
        "intermediate_size": metadata.count("expert_feed_forward_length"),
        "num_local_experts": metadata.count("expert_count"),
        "num_experts_per_tok": metadata.count("expert_used_count"),
        "sliding_window": metadata.count("attention.sliding_window"),
    }


ARCHITECTURES = {  # by the file's name for them
    "llama": Architecture("llama", _llama, permutes=True),
    "qwen2": Architecture("qwen2"),
    "qwen3": Architecture("qwen3"),
    "qwen2moe": Architecture("qwen2_moe", _qwen2moe),
    "qwen3moe": Architecture("qwen3_moe", _qwen3moe),
    "qwen2vl": Architecture("qwen2_vl_text", _qwen2vl),  # of Qwen2.5-VL, too
    "qwen3vl": Architecture("qwen3_vl_text", _qwen2vl),
    "qwen3vlmoe": Architecture("qwen3_vl_moe_text", _qwen3vlmoe),
    "gemma2": Architecture("gemma2", _gemma2, norm_offset=1.0),
    "gemma3": Architecture("gemma3_text", _gemma3, norm_offset=1.0),
    "phi3": Architecture("phi3", _phi3),
    "gpt-oss": Architecture("gpt_oss", _gpt_oss),
    "smollm3": Architecture("smollm3", permutes=True),
    "olmo2": Architecture("olmo2", _olmo2),
    "lfm2": Architecture("lfm2", hybrids.lfm2),
    "lfm2moe": Architecture("lfm2_moe", hybrids.lfm2moe),
    "qwen3next": Architecture("qwen3_next", hybrids.qwen3next, norm_offset=1.0),
    "qwen35": Architecture("qwen3_5_text", hybrids.qwen35, norm_offset=1.0),
    "qwen35moe": Architecture("qwen3_5_moe_text", hybrids.qwen35moe, norm_offset=1.0),
    "granitehybrid": Architecture("granitemoehybrid", hybrids.granitehybrid, permutes=True),
    "falcon-h1": Architecture("falcon_h1", hybrids.falcon_h1),
    "nemotron_h": Architecture("nemotron_h", hybrids.nemotron_h, permutes=True),
}
MIXTRAL = Architecture("mixtral", _mixtral, permutes=True)
