"""Tiny random models that see, in folders as a hub has them: weights, tokenizer, processor and chat template."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForImageTextToText, PreTrainedModel, PreTrainedTokenizerFast
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil
from transformers.models.gemma3.processing_gemma3 import Gemma3Processor
from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import GotOcr2ImageProcessorPil
from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil
from transformers.models.idefics3.processing_idefics3 import Idefics3Processor
from transformers.models.internvl.processing_internvl import InternVLProcessor
from transformers.models.llava.processing_llava import LlavaProcessor
from transformers.models.llava_next.image_processing_pil_llava_next import LlavaNextImageProcessorPil
from transformers.models.llava_next.processing_llava_next import LlavaNextProcessor
from transformers.models.pixtral.image_processing_pil_pixtral import PixtralImageProcessorPil
from transformers.models.qwen2_5_vl.processing_qwen2_5_vl import Qwen2_5_VLProcessor
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from transformers.models.qwen2_vl.processing_qwen2_vl import Qwen2VLProcessor
from transformers.models.qwen3_vl.processing_qwen3_vl import Qwen3VLProcessor
from transformers.models.smolvlm.image_processing_pil_smolvlm import SmolVLMImageProcessorPil

from server.prompts.images.pixtral import PixtralProcessor
from tests.models import _draw_weights

QWEN = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe")
FAMILIES = ("llava", "llava_next", "idefics3", "smolvlm", "internvl", *QWEN, "gemma3", "mistral3", "pixtral")
TILE = 28  # pixels a side
PATCH = 14
IMAGES = ["<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>"]  # Qwen's
IMAGES += ["<image>", "<fake_token_around_image>", "<global-img>", "<end_of_utterance>"]
TILES = [f"<row_{row}_col_{column}>" for row in range(1, 4) for column in range(1, 4)]
OF_PICTURES = ["image_processor", "tokenizer"]  # parts of a processor without that for videos
QWEN_TOKENS = {
    "video_token_id": "video_pad",
    "vision_start_token_id": "vision_start",
    "vision_end_token_id": "vision_end",
}
Fields = dict[str, Any]
Parts = tuple[Any, Fields, Fields]  # the processor, fields of the tower's configuration and of the whole
INTERNVL = {
    "start_image_token": "<img>",
    "end_image_token": "</img>",
    "context_image_token": "<IMG_CONTEXT>",
    "video_token": "<video>",
}
ROPE = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]}  # time, height and width
HYBRID = {
    "rope_parameters": ROPE | {"partial_rotary_factor": 0.5},
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "full_attention_interval": 2,
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
TEXTS: dict[str, dict[str, Any]] = {kind: {"rope_parameters": ROPE} for kind in QWEN} | {
    "qwen3_5": HYBRID,
    "qwen3_5_moe": HYBRID | EXPERTS | {"shared_expert_intermediate_size": 32},
    "qwen3_vl_moe": {"rope_parameters": ROPE} | EXPERTS,
    "gemma3": {
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "sliding_window": 8,  # fewer than a picture's tokens
        "query_pre_attn_scalar": 16,
    },
}
GEMMA = {"boi_token": "<start_of_image>", "eoi_token": "<end_of_image>", "image_token": "<image_soft_token>"}
PIXTRAL = ["[IMG]", "[IMG_BREAK]", "[IMG_END]"]
TEMPLATE = (
    "{% for message in messages %}{{ '<s>' + message['role'] + ': ' }}{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}{{ 'IMAGE' }}{% else %}{{ part['text'] }}{% endif %}{% endfor %}{{ '</s>' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<s>assistant: ' }}{% endif %}"
)


def picture(seed: int = 0, width: int = 40, height: int = 31) -> Image.Image:
    """Random pixels."""
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8))


def tokenizer(kind: str) -> PreTrainedTokenizerFast:
    """A token for each byte, one for two zeros, and the names that processors of all families want, or Gemma's its
    own."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {name: number for number, name in enumerate(["<pad>", "<s>", "</s>", *letters, "ĀĀ"])}
    bare = Tokenizer(models.BPE(vocab=vocabulary, merges=[("Ā", "Ā")]))  # files of some formats cannot have none
    bare.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    bare.decoder = decoders.ByteLevel()
    usual = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>"}
    named = PreTrainedTokenizerFast(tokenizer_object=bare, **usual, **(GEMMA if kind == "gemma3" else INTERNVL))
    named.add_special_tokens({"extra_special_tokens": [*IMAGES, *TILES, *PIXTRAL]})
    return named


def tiny_seeing(kind: str, folder: Path, **text: Any) -> PreTrainedModel:
    """A random float32 model that sees, which is also saved with all that belongs to it. text: fields of the
    configuration of its text model, over the usual ones."""
    names = tokenizer(kind)
    processor, vision, own = _PARTS[kind](names)
    text_config = {
        "model_type": f"{kind}_text" if kind in (*QWEN, "gemma3") else "llama",
        "vocab_size": len(names),
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 1024,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    text_config |= TEXTS.get(kind, {}) | text
    usual = {"image_token_id": names.convert_tokens_to_ids(processor.image_token), "tie_word_embeddings": False}
    config = CONFIG_MAPPING["llava" if kind == "pixtral" else kind](
        text_config=text_config, vision_config=vision, **usual | own
    )
    torch.manual_seed(0)
    model = AutoModelForImageTextToText.from_config(config).eval()
    _draw_weights(model)
    model.generation_config.eos_token_id, model.generation_config.pad_token_id = 2, 0
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    template = TEMPLATE.replace("IMAGE", processor.image_token)
    (folder / "chat_template.jinja").write_text(template)
    if kind == "smolvlm":  # whose own processor wants packages that only videos need
        saved = json.loads((folder / "processor_config.json").read_text())
        (folder / "processor_config.json").write_text(json.dumps(saved | {"processor_class": "SmolVLMProcessor"}))
    return model


def _llava(names: PreTrainedTokenizerFast) -> Parts:
    images = CLIPImageProcessorPil(size={"shortest_edge": TILE}, crop_size={"height": TILE, "width": TILE})
    processor = LlavaProcessor(
        images, names, patch_size=PATCH, vision_feature_select_strategy="default", num_additional_image_tokens=1
    )
    return processor, _vision("clip_vision_model") | {"projection_dim": 32}, {"vision_feature_layer": -2}


def _llava_next(names: PreTrainedTokenizerFast) -> Parts:
    sizes = {"size": {"shortest_edge": TILE}, "crop_size": {"height": TILE, "width": TILE}}
    places = [[TILE, 2 * TILE], [2 * TILE, TILE], [2 * TILE, 2 * TILE]]
    images = LlavaNextImageProcessorPil(**sizes, image_grid_pinpoints=places)
    processor = LlavaNextProcessor(
        images, names, patch_size=PATCH, vision_feature_select_strategy="default", num_additional_image_tokens=1
    )
    own = {"vision_feature_layer": -2, "image_grid_pinpoints": places}
    return processor, _vision("clip_vision_model") | {"projection_dim": 32}, own


def _idefics3(names: PreTrainedTokenizerFast) -> Parts:
    sizes = {"size": {"longest_edge": 2 * TILE}, "max_image_size": {"longest_edge": TILE}}
    processor = Idefics3Processor(Idefics3ImageProcessorPil(**sizes), names, image_seq_len=1)
    return processor, _vision("idefics3_vision"), {"scale_factor": 2}


def _smolvlm(names: PreTrainedTokenizerFast) -> Parts:
    sizes = {"size": {"longest_edge": 2 * TILE}, "max_image_size": {"longest_edge": TILE}}
    processor = Idefics3Processor(SmolVLMImageProcessorPil(**sizes), names, image_seq_len=1)
    return processor, _vision("smolvlm_vision"), {"scale_factor": 2}


def _internvl(names: PreTrainedTokenizerFast) -> Parts:
    images = GotOcr2ImageProcessorPil(size={"height": TILE, "width": TILE}, max_patches=4)
    kind = type("InternVLProcessor", (InternVLProcessor,), {"get_attributes": classmethod(lambda _: OF_PICTURES)})
    return kind(images, names, image_seq_length=1), _vision("internvl_vision"), {"image_seq_length": 1}


def _qwen(kind: type[Any], vision: dict[str, Any]) -> Callable[[PreTrainedTokenizerFast], Parts]:
    def parts(names: PreTrainedTokenizerFast) -> Parts:
        size = {"shortest_edge": 2 * TILE * TILE, "longest_edge": 12 * TILE * TILE}
        images = Qwen2VLImageProcessorPil(size=size, patch_size=PATCH, merge_size=2)
        of_pictures = type(kind.__name__, (kind,), {"get_attributes": classmethod(lambda _: OF_PICTURES)})
        sizes = {"depth": 2, "num_heads": 2, "hidden_size": 32, "patch_size": PATCH, "spatial_merge_size": 2}
        own = {name: names.convert_tokens_to_ids(f"<|{token}|>") for name, token in QWEN_TOKENS.items()}
        return of_pictures(images, names), sizes | vision, own

    return parts


def _gemma3(names: PreTrainedTokenizerFast) -> Parts:
    sizes = {"size": {"height": 2 * TILE, "width": 2 * TILE}}
    processor = Gemma3Processor(Gemma3ImageProcessorPil(**sizes), names, image_seq_length=16)
    own = {"mm_tokens_per_image": 16, "image_token_id": names.convert_tokens_to_ids(GEMMA["image_token"])}
    return processor, _vision("siglip_vision_model") | {"image_size": 2 * TILE, "vision_use_head": False}, own


def _pixtral(names: PreTrainedTokenizerFast, merged: int = 1) -> Parts:
    images = PixtralImageProcessorPil(size={"longest_edge": 4 * TILE}, patch_size={"height": PATCH, "width": PATCH})
    processor = PixtralProcessor(images, names, patch_size=PATCH, spatial_merge_size=merged)
    own = {"vision_feature_layer": -1, "vision_feature_select_strategy": "full"}
    return processor, _vision("pixtral") | {"image_size": 4 * TILE, "head_dim": 16}, own


def _mistral3(names: PreTrainedTokenizerFast) -> Parts:
    processor, vision, _ = _pixtral(names, merged=2)
    return processor, vision, {"vision_feature_layer": -1, "spatial_merge_size": 2}


def _vision(kind: str) -> dict[str, Any]:
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
    return {"model_type": kind, "image_size": TILE, "patch_size": PATCH} | sizes


OF_QWEN3 = {"intermediate_size": 48, "out_hidden_size": 64, "num_position_embeddings": 16}
_PARTS = {
    "llava": _llava,
    "llava_next": _llava_next,
    "idefics3": _idefics3,
    "smolvlm": _smolvlm,
    "internvl": _internvl,
    "gemma3": _gemma3,
    "mistral3": _mistral3,
    "pixtral": _pixtral,
    "qwen2_vl": _qwen(Qwen2VLProcessor, {"embed_dim": 32, "hidden_size": 64, "mlp_ratio": 2}),
    "qwen2_5_vl": _qwen(
        Qwen2_5_VLProcessor,
        {"intermediate_size": 48, "out_hidden_size": 64, "window_size": 56, "fullatt_block_indexes": [1]},
    ),
    "qwen3_vl": _qwen(Qwen3VLProcessor, OF_QWEN3 | {"deepstack_visual_indexes": [0, 1]}),
    "qwen3_vl_moe": _qwen(Qwen3VLProcessor, OF_QWEN3 | {"deepstack_visual_indexes": [1]}),
    "qwen3_5": _qwen(Qwen3VLProcessor, OF_QWEN3),
    "qwen3_5_moe": _qwen(Qwen3VLProcessor, OF_QWEN3),
}


def processor_of(kind: str) -> Any:
    """transformers' own, with a tokenizer of its own."""
    return _PARTS[kind](tokenizer(kind))[0]
