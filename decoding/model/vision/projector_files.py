"""The folder of small files of a model that sees, made of what the GGUF files of its language model and projector say.

It has what the hub's folder of such a model has: config.json of both parts, the tokenizer, and what the processor of
its pictures reads. Imports no torch.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from decoding.errors import ConfigError, listed
from decoding.model.files.gguf_config import config_of, token_ids
from decoding.model.files.gguf_file import GgufFile
from decoding.model.files.gguf_place import folder_of_texts, projector_of
from decoding.model.files.gguf_tokenizer import added_tokens, tokenizer_config, tokenizer_text
from decoding.model.vision.projectors import Projector, model_type_of, projector_in, seen_by

UNSEEN = "no projector (mmproj) is beside its GGUF file, nor named by --mmproj"
ROW = "image_token"


class Sight(NamedTuple):
    """projector: the file of what sees; folder: of the small files of a model with it; both None where there is none,
    for the reason that `blindness` gives, a clause."""

    projector: Path | None = None
    folder: Path | None = None
    blindness: str | None = None


def sight_of(paths: Sequence[Path], named: str | None) -> Sight:
    """With what the model in a GGUF file sees. named: the projector's file; None: what is found beside the model's.
    Raises ConfigError where the one that is named cannot be served."""
    try:
        projector = projector_of(paths, named)
        if projector is None:
            return Sight(blindness=UNSEEN)
        return Sight(projector, folder_of_texts((tuple(paths), (projector,)), _seeing_texts))
    except ConfigError as error:
        if named is not None:
            raise
        return Sight(blindness=str(error))


def _seeing_texts(language: GgufFile, projector: GgufFile) -> dict[str, str]:
    _, known = projector_in(projector)
    model_type = model_type_of(projector, language.architecture)
    text = config_of(language)
    seen = seen_by(projector, model_type, text["hidden_size"])
    tokens = added_tokens(language)
    names = _names(known, tokens)
    if text["model_type"] == "qwen2_vl_text":  # which stands for both
        text["model_type"] = f"{model_type}_text"
    config = {
        "model_type": model_type,
        "text_config": text,
        "vision_config": seen.vision,
        "image_token_id": tokens[names[ROW]],
        "tie_word_embeddings": text["tie_word_embeddings"],
    }
    tokenizer = tokenizer_config(language) | names
    tokenizer.setdefault("chat_template", known.template)
    return {
        "config.json": json.dumps(config | seen.whole),
        "generation_config.json": json.dumps(token_ids(language)),
        "tokenizer_config.json": json.dumps(tokenizer, ensure_ascii=False),
        "tokenizer.json": tokenizer_text(language),
        "preprocessor_config.json": json.dumps(seen.images),
        "processor_config.json": json.dumps(seen.processor),
    }


def _names(projector: Projector, tokens: Mapping[str, int]) -> dict[str, str]:
    """The model's tokens by the names that its processor has for them. Raises ConfigError where it lacks one."""
    found = {
        name: next((each for each in spelled if each in tokens), None) for name, spelled in projector.tokens.items()
    }
    missing = [projector.tokens[name][0] for name, each in found.items() if each is None]
    missing += [each for each in projector.others if each not in tokens]
    if missing:
        raise ConfigError(f"the model's vocabulary lacks tokens that a picture needs: {listed(missing)}")
    return {name: each for name, each in found.items() if each is not None}
