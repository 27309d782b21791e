"""Tiny random models that see, in folders as a hub has them: weights, tokenizer, processor and chat template."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForImageTextToText, PreTrainedModel, PreTrainedTokenizerFast
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import GotOcr2ImageProcessorPil
from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil
from transformers.models.idefics3.processing_idefics3 import Idefics3Processor
from transformers.models.internvl.processing_internvl import InternVLProcessor
from transformers.models.llava.processing_llava import LlavaProcessor
from transformers.models.llava_next.image_processing_pil_llava_next import LlavaNextImageProcessorPil
from transformers.models.llava_next.processing_llava_next import LlavaNextProcessor
from transformers.models.smolvlm.image_processing_pil_smolvlm import SmolVLMImageProcessorPil

from tests.models import _draw_weights

FAMILIES = ("llava", "llava_next", "idefics3", "smolvlm", "internvl")
TILE = 28  # pixels a side
PATCH = 14
IMAGES = ["<image>", "<fake_token_around_image>", "<global-img>", "<end_of_utterance>"]
TILES = [f"<row_{row}_col_{column}>" for row in range(1, 4) for column in range(1, 4)]
OF_PICTURES = ["image_processor", "tokenizer"]  # parts of a processor without that for videos
INTERNVL = {
    "start_image_token": "<img>",
    "end_image_token": "</img>",
    "context_image_token": "<IMG_CONTEXT>",
    "video_token": "<video>",
}
TEMPLATE = (
    "{% for message in messages %}{{ '<s>' + message['role'] + ': ' }}{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}{{ 'IMAGE' }}{% else %}{{ part['text'] }}{% endif %}{% endfor %}{{ '</s>' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<s>assistant: ' }}{% endif %}"
)


def picture(seed: int = 0, width: int = 40, height: int = 31) -> Image.Image:
    """Random pixels."""
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8))


def tokenizer() -> PreTrainedTokenizerFast:
    """A token for each byte, and the names that processors of all families want."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {name: number for number, name in enumerate(["<pad>", "<s>", "</s>", *letters])}
    bare = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    bare.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    bare.decoder = decoders.ByteLevel()
    usual = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>"}
    named = PreTrainedTokenizerFast(tokenizer_object=bare, **usual, **INTERNVL)
    named.add_special_tokens({"extra_special_tokens": [*IMAGES, *TILES]})
    return named


def tiny_seeing(kind: str, folder: Path, **text: Any) -> PreTrainedModel:
    """A random float32 model that sees, which is also saved with all that belongs to it. text: fields of the
    configuration of its text model, over the usual ones."""
    names = tokenizer()
    processor, vision, own = _PARTS[kind](names)
    text_config = {
        "model_type": "llama",
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
    } | text
    image_token_id = names.convert_tokens_to_ids(processor.image_token)
    config = CONFIG_MAPPING[kind](
        text_config=text_config, vision_config=vision, image_token_id=image_token_id, tie_word_embeddings=False, **own
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


def _llava(names: PreTrainedTokenizerFast) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    images = CLIPImageProcessorPil(size={"shortest_edge": TILE}, crop_size={"height": TILE, "width": TILE})
    processor = LlavaProcessor(
        images, names, patch_size=PATCH, vision_feature_select_strategy="default", num_additional_image_tokens=1
    )
    return processor, _vision("clip_vision_model") | {"projection_dim": 32}, {"vision_feature_layer": -2}


def _llava_next(names: PreTrainedTokenizerFast) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    sizes = {"size": {"shortest_edge": TILE}, "crop_size": {"height": TILE, "width": TILE}}
    places = [[TILE, 2 * TILE], [2 * TILE, TILE], [2 * TILE, 2 * TILE]]
    images = LlavaNextImageProcessorPil(**sizes, image_grid_pinpoints=places)
    processor = LlavaNextProcessor(
        images, names, patch_size=PATCH, vision_feature_select_strategy="default", num_additional_image_tokens=1
    )
    own = {"vision_feature_layer": -2, "image_grid_pinpoints": places}
    return processor, _vision("clip_vision_model") | {"projection_dim": 32}, own


def _idefics3(names: PreTrainedTokenizerFast) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    sizes = {"size": {"longest_edge": 2 * TILE}, "max_image_size": {"longest_edge": TILE}}
    processor = Idefics3Processor(Idefics3ImageProcessorPil(**sizes), names, image_seq_len=1)
    return processor, _vision("idefics3_vision"), {"scale_factor": 2}


def _smolvlm(names: PreTrainedTokenizerFast) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    sizes = {"size": {"longest_edge": 2 * TILE}, "max_image_size": {"longest_edge": TILE}}
    processor = Idefics3Processor(SmolVLMImageProcessorPil(**sizes), names, image_seq_len=1)
    return processor, _vision("smolvlm_vision"), {"scale_factor": 2}


def _internvl(names: PreTrainedTokenizerFast) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    images = GotOcr2ImageProcessorPil(size={"height": TILE, "width": TILE}, max_patches=4)
    kind = type("InternVLProcessor", (InternVLProcessor,), {"get_attributes": classmethod(lambda _: OF_PICTURES)})
    return kind(images, names, image_seq_length=1), _vision("internvl_vision"), {"image_seq_length": 1}


def _vision(kind: str) -> dict[str, Any]:
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
    return {"model_type": kind, "image_size": TILE, "patch_size": PATCH} | sizes


_PARTS = {
    "llava": _llava,
    "llava_next": _llava_next,
    "idefics3": _idefics3,
    "smolvlm": _smolvlm,
    "internvl": _internvl,
}


def processor_of(kind: str) -> Any:
    """transformers' own, with a tokenizer of its own."""
    return _PARTS[kind](tokenizer())[0]
