"""A random model with the shape of SmolVLM-256M-Instruct, in a folder as a hub has it: what takes time is there, and
nothing that it says means anything.

Sizes: config.json and preprocessor_config.json of HuggingFaceTB/SmolVLM-256M-Instruct.
"""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForImageTextToText, Idefics3Config, PreTrainedTokenizerFast
from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil
from transformers.models.idefics3.processing_idefics3 import Idefics3Processor

NAME = "the shape of SmolVLM-256M, random weights"
TEXT: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 49280,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "head_dim": 64,
    "max_position_embeddings": 8192,
    "rope_parameters": {"rope_type": "default", "rope_theta": 100_000.0},
    "rms_norm_eps": 1e-5,
    "pad_token_id": 2,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
VISION: dict[str, Any] = {
    "model_type": "idefics3_vision",
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "image_size": 512,
    "patch_size": 16,
}
SCALE = 4  # patches a side that become one token
ROWS_OF_TILE = (VISION["image_size"] // VISION["patch_size"] // SCALE) ** 2
LARGEST, MOST_TILES = 2048, 6  # pixels of a picture's longer side, and the tiles of each side that have names
SPECIAL = ("<unk>", "<s>", "</s>", "<image>", "<fake_token_around_image>", "<global-img>", "<end_of_utterance>")
CHAT = (
    "{% for message in messages %}<s>{{ message.role }}: {% for part in message.content %}{% if part.type == 'image' %}"
    "<image>{% else %}{{ part.text }}{% endif %}{% endfor %}</s>{% endfor %}"
    "{% if add_generation_prompt %}<s>assistant: {% endif %}"
)


def write_model(folder: Path) -> None:
    """Write the model, some 500 MB. Raises OSError."""
    names = _tokenizer()
    sizes = {"size": {"longest_edge": LARGEST}, "max_image_size": {"longest_edge": VISION["image_size"]}}
    processor: Any = Idefics3Processor(Idefics3ImageProcessorPil(**sizes), names, image_seq_len=ROWS_OF_TILE)
    torch.manual_seed(0)
    model: Any = AutoModelForImageTextToText.from_config(configuration(), dtype=torch.bfloat16)
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    (folder / "chat_template.jinja").write_text(CHAT)


def configuration() -> Idefics3Config:
    """Of the model."""
    return Idefics3Config(
        text_config=TEXT,
        vision_config=VISION,
        scale_factor=SCALE,
        image_token_id=SPECIAL.index("<image>"),
        tie_word_embeddings=False,
    )


def _tokenizer() -> PreTrainedTokenizerFast:
    """A token for each byte, the names that the processor wants, and as many others as the shape has."""
    tiles = [f"<row_{row}_col_{column}>" for row, column in product(range(1, MOST_TILES + 1), repeat=2)]
    known = [*SPECIAL, *tiles, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    known += [f"unused {number}" for number in range(TEXT["vocab_size"] - len(known))]
    bare = Tokenizer(models.BPE(vocab={name: number for number, name in enumerate(known)}, merges=[]))
    bare.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    bare.decoder = decoders.ByteLevel()
    usual = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "</s>"}
    names = PreTrainedTokenizerFast(tokenizer_object=bare, **usual)
    names.add_special_tokens({"extra_special_tokens": [*SPECIAL[3:], *tiles]})
    return names
