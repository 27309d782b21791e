"""Which models' pictures are served, and why those of others are not.

Knows configurations alone, and imports little, since the server asks it, too. Invariant: a model of a served type runs
its text part as a model of text does: a picture's rows stand in place of embeddings, and see what is before them.
"""

from __future__ import annotations

from typing import Any

PIXTRAL = "PixtralProcessor"
# By type, transformers' processor of its pictures, but for Pixtral's, which is ours. SmolVLM's own differs from Idefics
# 3's in videos alone, for which it wants packages.
PROCESSORS = {
    "llava": "LlavaProcessor",
    "llava_next": "LlavaNextProcessor",
    "idefics3": "Idefics3Processor",
    "smolvlm": "Idefics3Processor",
    "internvl": "InternVLProcessor",
    "qwen2_vl": "Qwen2VLProcessor",
    "qwen2_5_vl": "Qwen2_5_VLProcessor",
    "qwen3_vl": "Qwen3VLProcessor",
    "qwen3_vl_moe": "Qwen3VLProcessor",
    "qwen3_5": "Qwen3VLProcessor",
    "qwen3_5_moe": "Qwen3VLProcessor",
    "gemma3": "Gemma3Processor",
    "mistral3": PIXTRAL,
}
JOINT = frozenset({"gemma3"})  # whose pictures' tokens see each other in both directions
# Whose pictures' tokens have positions in time, height and width.
THREE_POSITIONS = frozenset({"qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe"})
LANGUAGE_PARTS = ("language_model", "text_model")  # a model that sees has one of them beside its tower
REASONS = {"paligemma": "all tokens of their prompts see each other in both directions"}


def processor_name(kind: str, vision_kind: str | None) -> str | None:
    """Of the class that processes pictures of models of a type, with a tower of a type; None where none are served."""
    return PIXTRAL if (kind, vision_kind) == ("llava", "pixtral") else PROCESSORS.get(kind)


def sees(config: Any) -> bool:
    """Whether a model of this configuration, as transformers reads it, takes pictures."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES  # takes seconds

    return config.model_type in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES


def why_not(config: Any) -> str | None:
    """Why pictures of a model that sees are not served, as a clause; None where they are."""
    kind = config.model_type
    if kind in PROCESSORS:
        return None
    return f"models of type {kind!r} are served for text alone: {REASONS.get(kind, 'their pictures were never tried')}"


def image_token_id(config: Any) -> int:
    """The token that stands where a picture's rows go."""
    token_id: int = config.image_token_id
    return token_id
