"""A model's tokenizer: text to token ids and back, and the bytes of single tokens.

Knows nothing of prompts or replies. For a model with a tokenizer.json it does not import torch, which would cost
seconds at start-up.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from decoding.errors import ConfigError
from server.prompts.images.processor import ImageProcessor
from server.prompts.model_check import is_offline
from server.prompts.model_files import ModelFiles
from server.prompts.special_tokens import SpecialTokens
from server.prompts.tokenizer_config import read_tokenizer_config, special_token_texts

TOKENIZER_FILE = "tokenizer.json"
USUAL_CLASS = "PreTrainedTokenizerFast"
TRIAL = "Hello, wörld!"
BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


@dataclass(frozen=True, slots=True)
class Tokenizer:
    """decoder: the "decoder" of tokenizer.json, which says how token names spell bytes; "" if there is none.

    encode_with: takes text, add_special_tokens and parse_special, see `encode`; longest_token: the most characters that
    one token stands for; marks: the ids by name of the tokens that llguidance takes for no text, whatever they spell:
    special ones, and added ones in angle brackets. class_name: of the library's class that reads its files; named:
    the texts of special tokens by their names, such as eos_token; images: of a model that sees.
    """

    encode_with: Callable[[str, bool, bool], list[int]]
    decode_with: Callable[[Sequence[int], bool], str]
    name_of: Callable[[int], str | None]
    id_of: Callable[[str], int | None]
    decoder: str
    longest_token: int
    special_tokens: SpecialTokens
    marks: Mapping[str, int] = field(default_factory=dict)
    class_name: str = USUAL_CLASS
    named: Mapping[str, str] = field(default_factory=dict)
    images: ImageProcessor | None = None

    @property
    def has_byte_tokens(self) -> bool:
        """Whether characters missing from the vocabulary are spelled in byte tokens, so that text must be decoded token
        by token."""
        return not self.decoder or "ByteFallback" in self.decoder

    def encode(self, text: str, add_special_tokens: bool = True, parse_special: bool = True) -> list[int]:
        """add_special_tokens: add the model's own (beginning of text); parse_special: encode names of special tokens in
        the text as those tokens."""
        return self.encode_with(text, add_special_tokens, parse_special)

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        return self.decode_with(token_ids, skip_special_tokens)

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes of one token, which need not be whole characters. Special tokens have the bytes of their names."""
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
    """GPT-2's spelling of bytes as letters: printable bytes are themselves, the others the letters 256, 257, ..."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


def load_tokenizer(files: ModelFiles, trust_remote_code: bool) -> Tokenizer:
    """The tokenizer of a bundled model, folder or hub name, which has encoded a text. Blocks: reads files, may download
    them. Raises ConfigError where the library panics over it, and what the library raises."""
    path = files.find(TOKENIZER_FILE)
    try:
        tokenizer = _from_hub(files, trust_remote_code) if path is None else _from_file(path)
        tokenizer.decode(tokenizer.encode(TRIAL))
    except Exception:
        raise
    except BaseException as panic:  # of Rust's
        raise ConfigError(f"the tokenizers library gives up over it: {panic}") from None
    config = read_tokenizer_config(files)
    class_name = config.get("tokenizer_class")
    known = class_name if isinstance(class_name, str) else USUAL_CLASS
    return replace(tokenizer, class_name=known, named=special_token_texts(config))


def _from_hub(files: ModelFiles, trust_remote_code: bool) -> Tokenizer:
    from transformers import AutoTokenizer  # imported late: it takes seconds

    auto: Any = AutoTokenizer.from_pretrained(
        files.model, revision=files.revision, trust_remote_code=trust_remote_code, local_files_only=is_offline()
    )
    plain = deepcopy(auto)  # a second one, because split_special_tokens changes a tokenizer's state
    vocabulary: dict[str, int] = auto.get_vocab()

    def encode(text: str, add_special_tokens: bool, parse_special: bool) -> list[int]:
        read = auto if parse_special else plain
        options = {"add_special_tokens": add_special_tokens, "split_special_tokens": not parse_special}
        token_ids: list[int] = read(text, verbose=False, **options)["input_ids"]
        return token_ids

    def decode(token_ids: Sequence[int], skip_special_tokens: bool) -> str:
        options = {"skip_special_tokens": skip_special_tokens, "clean_up_tokenization_spaces": False}
        text: str = auto.decode(token_ids, **options)
        return text

    names = auto.convert_ids_to_tokens
    special = SpecialTokens(str(token) for token in auto.added_tokens_decoder.values() if token.special)
    longest, marks = _longest(vocabulary), _marks(auto.added_tokens_decoder)
    return Tokenizer(encode, decode, names, vocabulary.get, _decoder_of(auto), longest, special, marks)


def _decoder_of(auto: Any) -> str:
    backend = getattr(auto, "backend_tokenizer", None)
    return "" if backend is None else _decoder_part(backend.to_str())


def _decoder_part(text: str) -> str:
    return json.dumps(json.loads(text).get("decoder"), ensure_ascii=False)


def _from_file(path: Path) -> Tokenizer:
    fast, plain = _opened(path), _opened(path)  # two, because encode_special_tokens is part of a tokenizer's state
    plain.encode_special_tokens = True

    def encode(text: str, add_special_tokens: bool, parse_special: bool) -> list[int]:
        """Encode as a batch of one, because the library releases the interpreter's lock only for batches."""
        read = fast if parse_special else plain
        token_ids: list[int] = read.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids
        return token_ids

    def decode(token_ids: Sequence[int], skip_special_tokens: bool) -> str:
        text: str = fast.decode(token_ids, skip_special_tokens=skip_special_tokens)
        return text

    decoder, longest = _decoder_part(path.read_text("utf-8")), _longest(fast.get_vocab())
    added = fast.get_added_tokens_decoder()
    special = SpecialTokens(token.content for token in added.values() if token.special)
    return Tokenizer(encode, decode, fast.id_to_token, fast.token_to_id, decoder, longest, special, _marks(added))


def _marks(added: Mapping[int, Any]) -> dict[str, int]:
    names = {token_id: token.content for token_id, token in added.items()}
    return {
        name: token_id
        for token_id, name in names.items()
        if added[token_id].special or (name.startswith("<") and name.endswith(">"))
    }


def _opened(path: Path) -> Any:
    from tokenizers import Tokenizer as FastTokenizer

    opened: Any = FastTokenizer.from_file(str(path))
    opened.no_truncation()
    opened.no_padding()
    return opened


def _longest(vocabulary: Mapping[str, int]) -> int:
    """The length of the longest token name: never less than the characters it stands for, because bytes are letters."""
    return max(map(len, vocabulary), default=1)
