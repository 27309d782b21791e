"""Which models' pictures are served, and why those of others are not.

Knows configurations alone, and imports little, since the server asks it, too. Invariant: a model of a served type runs
its text part as a model of text does: a picture's rows stand in place of embeddings, at positions that count on, and
see what is before them.
"""

from __future__ import annotations

from typing import Any

# By type, transformers' processor of its pictures. SmolVLM's own differs from Idefics 3's in videos alone, for which it
# wants packages.
PROCESSORS = {
    "llava": "LlavaProcessor",
    "llava_next": "LlavaNextProcessor",
    "idefics3": "Idefics3Processor",
    "smolvlm": "Idefics3Processor",
    "internvl": "InternVLProcessor",
}
LANGUAGE_PARTS = ("language_model", "text_model")  # a model that sees has one of them beside its tower
TWO_WAY = "tokens of a picture see each other in both directions, which no mask here does"
THREE_POSITIONS = "a picture's tokens have three positions each, which no step here has"
NEEDS_TORCHVISION = "transformers' processor of their pictures wants torchvision"
REASONS = {
    "mistral3": NEEDS_TORCHVISION,
    "pixtral": NEEDS_TORCHVISION,
    "gemma3": TWO_WAY,
    "gemma4": TWO_WAY,
    "paligemma": TWO_WAY,
    "qwen2_vl": THREE_POSITIONS,
    "qwen2_5_vl": THREE_POSITIONS,
    "qwen3_vl": THREE_POSITIONS,
    "qwen3_vl_moe": THREE_POSITIONS,
    "qwen3_5": THREE_POSITIONS,
    "qwen3_5_moe": THREE_POSITIONS,
}


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
