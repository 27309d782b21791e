"""A model's tokenizer: text to ids and back, and the bytes of single tokens.

Knows nothing of prompts or replies. torch is never imported here for a model that brings a tokenizer.json, because
that would cost seconds at start-up.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from server.prompts.model_files import ModelFiles

TOKENIZER_FILE = "tokenizer.json"
BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


@dataclass(frozen=True, slots=True)
class Tokenizer:
    """decoder: the decoder's part of tokenizer.json, which says how token names spell bytes; "" if there is none.

    longest_token: the most characters that one token stands for.
    """

    encode_with: Callable[[str, bool], list[int]]
    decode_with: Callable[[Sequence[int], bool], str]
    name_of: Callable[[int], str | None]
    id_of: Callable[[str], int | None]
    decoder: str
    longest_token: int

    @property
    def has_byte_tokens(self) -> bool:
        """Characters missing from the vocabulary are spelled in byte tokens, which only settle one by one."""
        return not self.decoder or "ByteFallback" in self.decoder

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """add_special_tokens: with the model's own beginning-of-text token."""
        return self.encode_with(text, add_special_tokens)

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        return self.decode_with(token_ids, skip_special_tokens)

    def token_bytes(self, token_id: int) -> bytes:
        """What one token spells, which need not be whole characters; special tokens spell their names."""
        name = self.name_of(token_id)
        if name is None:
            return b""
        if "ByteLevel" in self.decoder:
            table = _byte_level()
            if all(letter in table for letter in name):
                return bytes(table[letter] for letter in name)
            return name.encode()
        byte = BYTE_TOKEN.fullmatch(name)
        if byte is not None and self.has_byte_tokens:
            return bytes.fromhex(byte[1])
        if not self.decoder:
            return self.decode((token_id,), False).encode()
        return name.replace("▁", " ").encode() if "▁" in self.decoder else name.encode()


@cache
def _byte_level() -> dict[str, int]:
    """GPT-2's spelling of bytes as letters: printable ones stand for themselves, the others for 256, 257, ..."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


def load_tokenizer(files: ModelFiles, trust_remote_code: bool) -> Tokenizer:
    """The tokenizer of a bundled model, folder or hub name. Blocks: reads files, may download them."""
    path = files.find(TOKENIZER_FILE)
    if path is not None:
        return _from_file(path)
    from transformers import AutoTokenizer  # imported late: it takes seconds

    auto: Any = AutoTokenizer.from_pretrained(files.model, revision=files.revision, trust_remote_code=trust_remote_code)
    vocabulary: dict[str, int] = auto.get_vocab()

    def encode(text: str, add_special_tokens: bool) -> list[int]:
        token_ids: list[int] = auto(text, add_special_tokens=add_special_tokens, verbose=False)["input_ids"]
        return token_ids

    def decode(token_ids: Sequence[int], skip_special_tokens: bool) -> str:
        options = {"skip_special_tokens": skip_special_tokens, "clean_up_tokenization_spaces": False}
        text: str = auto.decode(token_ids, **options)
        return text

    names = auto.convert_ids_to_tokens
    return Tokenizer(encode, decode, names, vocabulary.get, _decoder_of(auto), _longest(vocabulary))


def _decoder_of(auto: Any) -> str:
    backend = getattr(auto, "backend_tokenizer", None)
    return "" if backend is None else _decoder_part(backend.to_str())


def _decoder_part(text: str) -> str:
    return json.dumps(json.loads(text).get("decoder"), ensure_ascii=False)


def _from_file(path: Path) -> Tokenizer:
    from tokenizers import Tokenizer as FastTokenizer

    fast: Any = FastTokenizer.from_file(str(path))
    fast.no_truncation()
    fast.no_padding()

    def encode(text: str, add_special_tokens: bool) -> list[int]:
        """A batch of one: only of batches does the library let go of the interpreter's lock."""
        token_ids: list[int] = fast.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids
        return token_ids

    def decode(token_ids: Sequence[int], skip_special_tokens: bool) -> str:
        text: str = fast.decode(token_ids, skip_special_tokens=skip_special_tokens)
        return text

    decoder, longest = _decoder_part(path.read_text("utf-8")), _longest(fast.get_vocab())
    return Tokenizer(encode, decode, fast.id_to_token, fast.token_to_id, decoder, longest)


def _longest(vocabulary: Mapping[str, int]) -> int:
    """Of a vocabulary by name, in which a character is one letter or, spelled in bytes, several."""
    return max(map(len, vocabulary), default=1)
