"""Prompts: loading a model's tokenizer, encoding what clients send, and refusing what cannot be served.

Owns the tokenizer; knows nothing of sampling or of the worker. torch is never imported here for a model that
brings a tokenizer.json, because that would cost seconds at start-up.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import decoding
from decoding.config import BUNDLED_MODEL
from decoding.errors import ConfigError
from server.errors import ApiError, invalid

TOKENIZER_FILE = "tokenizer.json"
SHORT_TEXT = 4000  # characters; longer ones are encoded in a thread, so that streams go on

Prompt = str | list[int]


@dataclass(frozen=True, slots=True)
class Tokenizer:
    """encode: text to ids with the model's own beginning-of-text token; decode: ids to text without special ones.

    has_byte_tokens: characters missing from the vocabulary are spelled in byte tokens, which only settle one by one.
    """

    encode: Callable[[str], list[int]]
    decode: Callable[[Sequence[int]], str]
    has_byte_tokens: bool


@dataclass(frozen=True, slots=True)
class EncodedPrompt:
    """text: what the client sent, or the text of the ids it sent."""

    token_ids: list[int]
    text: str


def load_tokenizer(model: str, revision: str | None, trust_remote_code: bool) -> Tokenizer:
    """The tokenizer of a bundled model, folder or hub name. Blocks: reads files, may download them."""
    path = _tokenizer_file(model, revision)
    if path is not None:
        return _from_file(path)
    from transformers import AutoTokenizer  # imported late: it takes seconds

    auto: Any = AutoTokenizer.from_pretrained(model, revision=revision, trust_remote_code=trust_remote_code)

    def decode(token_ids: Sequence[int]) -> str:
        text: str = auto.decode(token_ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return text

    def encode(text: str) -> list[int]:
        token_ids: list[int] = auto(text, verbose=False)["input_ids"]
        return token_ids

    return Tokenizer(encode, decode, has_byte_tokens=True)


def _tokenizer_file(model: str, revision: str | None) -> Path | None:
    if model == BUNDLED_MODEL:
        return Path(decoding.__file__).parent / BUNDLED_MODEL / TOKENIZER_FILE
    folder = Path(model)
    if folder.is_dir():
        if not (folder / "config.json").exists():
            raise ConfigError("the folder has no config.json")
        path = folder / TOKENIZER_FILE
        return path if path.exists() else None
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

    try:
        return Path(hf_hub_download(model, TOKENIZER_FILE, revision=revision))
    except LocalEntryNotFoundError:  # not cached, and the hub cannot be reached: nothing else will help
        raise
    except EntryNotFoundError:
        return None


def _from_file(path: Path) -> Tokenizer:
    from tokenizers import Tokenizer as FastTokenizer

    fast: Any = FastTokenizer.from_file(str(path))
    fast.no_truncation()
    fast.no_padding()

    def encode(text: str) -> list[int]:
        token_ids: list[int] = fast.encode(text).ids
        return token_ids

    def decode(token_ids: Sequence[int]) -> str:
        text: str = fast.decode(token_ids)
        return text

    decoder = json.dumps(json.loads(path.read_text("utf-8")).get("decoder"))
    return Tokenizer(encode, decode, has_byte_tokens="ByteFallback" in decoder)


async def encode_prompts(tokenizer: Tokenizer, prompts: Sequence[Prompt], vocab_size: int) -> list[EncodedPrompt]:
    """Raises ApiError naming the prompt at fault."""
    encoded = []
    for number, prompt in enumerate(prompts):
        if isinstance(prompt, str):
            text = prompt
            token_ids = await _encode(tokenizer, text)
        else:
            token_ids = prompt
            if not all(0 <= token_id < vocab_size for token_id in token_ids):
                bad = next(token_id for token_id in token_ids if not 0 <= token_id < vocab_size)
                message = f"Token id {bad} is outside the vocabulary, which has {vocab_size} tokens."
                raise invalid(message, "prompt", "token_out_of_vocabulary")
            text = tokenizer.decode(token_ids)
        if not token_ids:
            which = "The prompt" if len(prompts) == 1 else f"Prompt {number}"
            raise invalid(f"{which} is empty; it must have at least one token.", "prompt", "empty_prompt")
        encoded.append(EncodedPrompt(token_ids, text))
    return encoded


async def _encode(tokenizer: Tokenizer, text: str) -> list[int]:
    try:
        text.encode()
    except UnicodeEncodeError:
        message = "The prompt has half a surrogate pair, which is not a character."
        raise invalid(message, "prompt", "invalid_unicode") from None
    if len(text) <= SHORT_TEXT:
        return tokenizer.encode(text)
    return await asyncio.to_thread(tokenizer.encode, text)


def reply_room(prompt_len: int, max_tokens: int | None, default: int, max_model_len: int) -> int:
    """How many tokens the reply may have. Raises ApiError with both lengths where they do not fit the model."""
    room = max_model_len - prompt_len
    if max_tokens is None and room >= 1:
        return min(default, room)
    asked = 1 if max_tokens is None else max_tokens
    if asked <= room:
        return asked
    raise ApiError(
        400,
        f"This model's maximum context length is {max_model_len} tokens, but the request needs "
        f"{prompt_len + asked}: {prompt_len} in the prompt and {asked} for the reply.",
        "prompt" if room < 1 else "max_tokens",
        "context_length_exceeded",
    )
