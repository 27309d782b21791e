"""Writes tiny models that see as two GGUF files, a language model's and a projector's (mmproj), with gguf's own writer,
named and laid out as llama.cpp's converter does (conversion/gemma.py, smolvlm.py, qwenvl.py, qwen3vl.py, llava.py).

Knows nothing of Gander.
"""

from __future__ import annotations

import re
from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gguf
import numpy as np
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from tests.gguf_files import CONTROL, NORMAL, Encoding, encoding_of, write_gguf
from tests.seeing import ROPE, TEMPLATE, processor_of, tokenizer

KINDS = {
    "gemma3": "gemma3",
    "idefics3": "idefics3",
    "smolvlm": "idefics3",
    "qwen2_vl": "qwen2vl_merger",
    "qwen2_5_vl": "qwen2.5vl_merger",
    "qwen3_vl": "qwen3vl_merger",
    "qwen3_vl_moe": "qwen3vl_merger",
    "qwen3_5": "qwen3vl_merger",
    "qwen3_5_moe": "qwen3vl_merger",
    "pixtral": "pixtral",
    "mistral3": "pixtral",
}
# Of the configuration of the text model, what its file cannot say otherwise.
HALF = {"rope_parameters": ROPE | {"mrope_section": [2, 1, 1], "partial_rotary_factor": 0.5}}
TEXTS: dict[str, dict[str, Any]] = {
    "gemma3": {"num_hidden_layers": 6, "layer_types": None},
    "qwen3_5": HALF,
    "qwen3_5_moe": HALF,
}
NAMES = (
    (r"(vision_tower|vision_model)\.embeddings\.patch_embedding\.", "v.patch_embd."),
    (r"(vision_tower|vision_model)\.embeddings\.position_embedding\.", "v.position_embd."),
    (r"(vision_tower|vision_model)\.encoder\.layers\.", "v.blk."),
    (r"(vision_tower|vision_model)\.post_layernorm\.", "v.post_ln."),
    (r"vision_tower\.patch_conv\.", "v.patch_embd."),
    (r"vision_tower\.ln_pre\.", "v.pre_ln."),
    (r"vision_tower\.transformer\.layers\.", "v.blk."),
    (r"visual\.patch_embed\.proj\.", "v.patch_embd."),
    (r"visual\.pos_embed\.", "v.position_embd."),
    (r"visual\.blocks\.", "v.blk."),
    (r"visual\.merger\.(ln_q|norm)\.", "v.post_ln."),
    (r"visual\.merger\.(mlp\.0|linear_fc1)\.", "mm.0."),
    (r"visual\.merger\.(mlp\.2|linear_fc2)\.", "mm.2."),
    (r"visual\.deepstack_merger_list\.", "v.deepstack."),
    (r"\.(layer_norm1|norm1|attention_norm)\.", ".ln1."),
    (r"\.(layer_norm2|norm2|ffn_norm)\.", ".ln2."),
    (r"\.(self_attn|attention)\.([qkv])_proj\.", r".attn_\2."),
    (r"\.(self_attn\.out_proj|attn\.proj|attention\.o_proj)\.", ".attn_out."),
    (r"\.attn\.qkv\.", ".attn_qkv."),
    (r"\.(mlp\.fc1|mlp\.linear_fc1|mlp\.up_proj|feed_forward\.up_proj)\.", ".ffn_up."),
    (r"\.(mlp\.fc2|mlp\.linear_fc2|mlp\.down_proj|feed_forward\.down_proj)\.", ".ffn_down."),
    (r"\.(mlp|feed_forward)\.gate_proj\.", ".ffn_gate."),
    (r"\.linear_fc([12])\.", r".fc\1."),
    (r"connector\.modality_projection\.proj\.", "mm.model.fc."),
    (r"multi_modal_projector\.mm_input_projection_weight", "mm.input_projection.weight"),
    (r"multi_modal_projector\.mm_soft_emb_norm\.", "mm.soft_emb_norm."),
    (r"multi_modal_projector\.linear_([12])\.", r"mm.\1."),
    (r"multi_modal_projector\.norm\.", "mm.input_norm."),
    (r"multi_modal_projector\.patch_merger\.merging_layer\.", "mm.patch_merger."),
)


def write_language(
    path: Path,
    kind: str,
    own: PreTrainedModel,
    *,
    template: bool = True,
    renamed: dict[str, str] | None = None,
    sections: list[int] | None = None,
) -> Path:
    """The file of the text part. template: whether it has a template of chats. renamed: tokens. sections: other numbers
    than the model's that turn by height and width."""
    whole: Any = own.model
    part = next(name for name in ("language_model", "text_model") if hasattr(whole, name))
    state = {f"model.{name}": tensor for name, tensor in getattr(whole, part).state_dict().items()}
    config = own.config.get_text_config()
    config.tie_word_embeddings = False
    text: Any = SimpleNamespace(config=config, state_dict=lambda: state | {"lm_head.weight": own.lm_head.weight})

    def add(writer: gguf.GGUFWriter, _: int) -> None:
        add_tokenizer(writer, tokenizer(kind), renamed or {})
        if template:
            writer.add_chat_template(TEMPLATE.replace("IMAGE", processor_of(kind).image_token))

    if sections is not None:
        config = text.config = deepcopy(config)
        config.rope_parameters["mrope_section"] = sections[:3]
    return write_gguf(path, text, tokenizer=add)


def add_tokenizer(writer: gguf.GGUFWriter, names: PreTrainedTokenizerFast, renamed: dict[str, str]) -> None:
    """Of single bytes, with the special tokens where they are."""
    vocabulary, special = names.get_vocab(), set(names.all_special_tokens)
    special |= {str(token) for token in names.added_tokens_decoder.values() if token.special}
    tokens = sorted(vocabulary, key=vocabulary.__getitem__)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list([renamed.get(token, token) for token in tokens])
    writer.add_token_types([CONTROL if token in special else NORMAL for token in tokens])
    writer.add_token_merges(["Ā Ā"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(0)
    writer.add_add_bos_token(False)


def write_mmproj(
    path: Path,
    kind: str,
    own: PreTrainedModel,
    quantization: str = "F32",
    metadata: dict[str, Any] | None = None,
    is_early: bool = False,
) -> Path:
    """metadata: further keys, or other values of some; None leaves one out. is_early: as early converters, which have
    the names of a layer's widening and narrowing matrices the wrong way round."""
    writer, encoding = gguf.GGUFWriter(path, "clip"), encoding_of(quantization)
    for key, value in (described(kind, own) | (metadata or {})).items():
        if value is not None:
            element = gguf.GGUFValueType.get_type(value[0]) if isinstance(value, list) else None
            writer.add_key_value(key, value, gguf.GGUFValueType.get_type(value), element)
    for name, numbers in tower_tensors(kind, own).items():
        if is_early and ".ffn_" in name:
            name = name.replace("up", "#").replace("down", "up").replace("#", "down")
        _add(writer, name, numbers, encoding if quantization != "F32" else None)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add(writer: gguf.GGUFWriter, name: str, numbers: np.ndarray, encoding: Encoding | None) -> None:
    is_packed = encoding is not None and numbers.ndim > 1 and numbers.shape[-1] % encoding.values == 0
    if is_packed and encoding is not None and "position_embd" not in name:
        writer.add_tensor(name, encoding.encode(numbers), raw_dtype=encoding.number)  # type: ignore[arg-type]
    else:
        writer.add_tensor(name, numbers)


def described(kind: str, own: PreTrainedModel) -> dict[str, Any]:
    """The metadata."""
    config: Any = own.config
    vision = config.vision_config
    width = getattr(vision, "embed_dim", None) or vision.hidden_size
    is_of_qwen, images = kind.startswith("qwen"), processor_of(kind).image_processor
    fields = {
        "clip.projector_type": KINDS[kind],
        "clip.has_vision_encoder": True,
        "clip.vision.projection_dim": config.get_text_config().hidden_size,
        "clip.vision.image_size": 560 if is_of_qwen else vision.image_size,
        "clip.vision.patch_size": vision.patch_size,
        "clip.vision.embedding_length": width,
        "clip.vision.feed_forward_length": 1,  # which some converters did not know
        "clip.vision.block_count": vision.depth if is_of_qwen else vision.num_hidden_layers,
        "clip.vision.attention.head_count": vision.num_heads if is_of_qwen else vision.num_attention_heads,
        "clip.vision.attention.layer_norm_epsilon": getattr(vision, "layer_norm_eps", 1e-6),
        "clip.vision.image_mean": list(images.image_mean),
        "clip.vision.image_std": list(images.image_std),
    }
    if kind == "gemma3":
        fields["clip.vision.projector.scale_factor"] = vision.image_size // vision.patch_size // 4
    if KINDS[kind] == "idefics3":
        fields["clip.vision.projector.scale_factor"] = config.scale_factor
        fields["clip.vision.preproc_image_size"] = 2 * vision.image_size
    if kind == "qwen2_5_vl":
        fields |= {"clip.use_silu": True, "clip.vision.n_wa_pattern": vision.fullatt_block_indexes[0] + 1}
        fields["clip.vision.window_size"] = vision.window_size
    if is_of_qwen:
        fields["clip.vision.image_min_pixels"] = images.size["shortest_edge"]
        fields["clip.vision.image_max_pixels"] = images.size["longest_edge"]
    if KINDS[kind] == "qwen3vl_merger":
        deepened = getattr(vision, "deepstack_visual_indexes", ())
        fields["clip.vision.is_deepstack_layers"] = [layer in deepened for layer in range(vision.depth)]
    if kind == "mistral3":
        fields["clip.vision.spatial_merge_size"] = config.spatial_merge_size
    return fields


def tower_tensors(kind: str, own: PreTrainedModel) -> dict[str, np.ndarray]:
    """The numbers of tower and projector by llama.cpp's names."""
    whole: Any = own.model
    found: dict[str, torch.Tensor] = {}
    for parameter, tensor in whole.state_dict().items():
        if parameter.startswith(("language_model.", "text_model.")):
            continue
        name, numbers = parameter, tensor.detach().float()
        for pattern, theirs in NAMES:
            name = re.sub(pattern, theirs, name)
        if name.startswith("v.deepstack."):
            number = int(name.split(".")[2])
            name = name.replace(f".{number}.", f".{own.config.vision_config.deepstack_visual_indexes[number]}.", 1)
        if name == "mm.soft_emb_norm.weight":
            numbers = numbers + 1
        if KINDS[kind] == "pixtral" and ("attn_q." in name or "attn_k." in name):
            heads = own.config.vision_config.num_attention_heads
            numbers = numbers.reshape(heads, 2, -1, *numbers.shape[1:]).swapaxes(1, 2).reshape(numbers.shape)
        if "attn_qkv" in name and KINDS[kind] != "qwen3vl_merger":
            found |= {name.replace("qkv", part): each for part, each in zip("qkv", numbers.chunk(3), strict=True)}
        elif numbers.dim() == 5:
            found |= {name: numbers[:, :, 0], f"{name}.1": numbers[:, :, 1]}
        else:
            found[name] = numbers
    if KINDS[kind] == "pixtral":
        found["v.token_embd.img_break"] = whole.language_model.embed_tokens.weight[5].detach().float()
    return {name: np.ascontiguousarray(numbers.numpy()) for name, numbers in found.items()}
