"""Reads tokenizer_config.json: the names and texts of special tokens, and chat templates."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from decoding.errors import ConfigError
from server.prompts.model_files import ModelFiles

CONFIG_FILE = "tokenizer_config.json"
SPECIAL_TOKENS = ("bos_token", "eos_token", "pad_token", "unk_token")


def read_tokenizer_config(files: ModelFiles) -> dict[str, Any]:
    """The file's fields; none where there is no such file. Blocks: reads files. Raises ConfigError for a broken one."""
    path = files.find(CONFIG_FILE)
    try:
        config = {} if path is None else json.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise ConfigError(f"{CONFIG_FILE} cannot be read: {error}") from None
    if not isinstance(config, dict):
        raise ConfigError(f"{CONFIG_FILE} is not an object")
    return config


def special_token_texts(config: Mapping[str, Any]) -> dict[str, str]:
    """The texts of the special tokens that the model has, by the names that templates use (bos_token)."""
    tokens = {name: config.get(name) for name in SPECIAL_TOKENS}
    texts = {name: token.get("content") if isinstance(token, dict) else token for name, token in tokens.items()}
    return {name: text for name, text in texts.items() if isinstance(text, str)}
