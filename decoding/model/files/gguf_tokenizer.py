"""The tokenizer of a GGUF file as the text of tokenizer.json, and what tokenizer_config.json would say.

transformers builds the tokenizer; what its table of pre-tokenizers lacks is put right here. Imports no torch.
"""

from __future__ import annotations

import json
import logging
from typing import Any

import numpy as np

from decoding.errors import ConfigError, in_one_line
from decoding.model.files.gguf_config import token_ids
from decoding.model.files.gguf_file import GgufFile, Strings, text_of

logger = logging.getLogger(__name__)

IGNORING_MERGES = frozenset(
    ("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "jina-v5-nano", "tekken")
)  # a whole word that is a token is that
BEGINNING = IGNORING_MERGES  # a text begins with the beginning token, unless the file says otherwise
SINGLE_DIGITS = frozenset(("smollm", "starcoder", "refact", "command-r", "codeshell"))
AS_GPT2 = frozenset(("default", "gpt-2", "gpt2", "mpt", "olmo", "jais", "phi-2", "roberta-bpe", "gigachat", "trillion"))
TELLING = {"<|begin_of_text|>": "llama-bpe", "<|im_start|>": "qwen2"}  # of files that do not say how text is split
SPECIAL = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
PREFIX = "tokenizer.ggml."
NORMAL, CONTROL, USER_DEFINED = 1, 3, 4  # of tokenizer.ggml.token_type
ADDED = (CONTROL, USER_DEFINED)


def tokenizer_text(file: GgufFile) -> str:
    """The text of tokenizer.json. Raises ConfigError where the metadata make no tokenizer."""
    try:
        from transformers.integrations.gguf.gguf_tokenizer_mapping import (  # imported late: it takes seconds
            GGUF_PRE_TOKENIZER_SPLITS,
            GGUF_TOKENIZER_MAPPING,
            convert_gguf_tokenizer,
        )
    except ImportError:
        package = "transformers>=5.19"
        raise ConfigError(f"a GGUF file's tokenizer needs {package}: pip install -U '{package}'") from None

    tokens = _tokens(file)
    given = {
        name: _plain(file.metadata[f"tokenizer.{key}"])
        for key, name in GGUF_TOKENIZER_MAPPING["tokenizer"].items()
        if f"tokenizer.{key}" in file.metadata
    }
    for name in ("token_type", "scores"):
        if name in given and (not isinstance(given[name], list) or len(given[name]) != len(tokens)):
            raise ConfigError(f"{PREFIX}{name} is no list of {len(tokens)}, one for each token")
    needed = {"gpt2": "merges", "llama": "scores"}.get(str(given["tokenizer_type"]))
    is_derived = file.architecture.startswith("gemma")  # from the tokens' order
    if needed is not None and not is_derived and not given.keys() & {needed, "merges"}:
        raise ConfigError(f"its metadata has no list {PREFIX}{needed}: its tokenizer cannot be built")
    kinds = given["token_type"] = given.get("token_type", [NORMAL] * len(tokens))
    for token_id in token_ids(file).get("eos_token_id", ()):
        if token_id < len(tokens):
            kinds[token_id] = CONTROL  # as in llama.cpp, whatever the file says
    kind, split = given["tokenizer_type"], given.get("pre_tokenizer_type")
    if kind == "gpt2" and split is None:
        split = given["pre_tokenizer_type"] = _split_of(tokens)
        logger.warning("Its metadata lack %spre, how text is split: it is split as for %s.", PREFIX, split)
    try:
        backend, _ = convert_gguf_tokenizer(file.architecture, given)
        fields = json.loads(backend.to_str())
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # Rust's panics are no Exception
        raise ConfigError(f"its tokenizer cannot be built: {in_one_line(error)}") from error
    if kind == "gpt2":
        if split in IGNORING_MERGES:
            fields["model"]["ignore_merges"] = True
        if split in SINGLE_DIGITS:
            digits, words = {"type": "Digits", "individual_digits": True}, _byte_level()
            fields["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [digits, words]}
        elif split not in GGUF_PRE_TOKENIZER_SPLITS and split not in AS_GPT2:
            logger.warning("How %r splits text is not known: it is split as for GPT-2, which may cost quality.", split)
        _spell_added(fields["model"], tokens, kinds)
    if kind == "llama" and given.get("add_prefix_space") is False:
        fields["normalizer"] = _without_blank(fields["normalizer"])
        fields["pre_tokenizer"] = _without_blank(fields["pre_tokenizer"])
        fields["decoder"] = _without_blank(fields["decoder"])
    fields["added_tokens"] = _added(fields, tokens, kinds)
    fields["post_processor"] = _frame(file, tokens, split)
    return json.dumps(fields, ensure_ascii=False)


def _split_of(tokens: Strings) -> str:
    """How a file from before files said so splits text: as the model whose tokens it has."""
    named = set(tokens)
    return next((split for token, split in TELLING.items() if token in named), "default")


def _without_blank(part: Any) -> Any:
    """A normalizer, pre-tokenizer or decoder that neither puts a blank before a text nor takes one from it."""
    if not isinstance(part, dict):
        return part
    if part["type"] in ("Prepend", "Strip"):
        return None
    part = part | ({"prepend_scheme": "never"} if part["type"] == "Metaspace" else {})
    for several in ("normalizers", "pretokenizers", "decoders"):
        if several in part:
            part[several] = [kept for each in part[several] if (kept := _without_blank(each)) is not None]
    return part


def _spell_added(model: dict[str, Any], tokens: Strings, kinds: list[int]) -> None:
    """Give added tokens the file's spelling: transformers spells those with other letters than bytes have as text."""
    vocabulary = {name: token_id for name, token_id in model["vocab"].items() if kinds[token_id] not in ADDED}
    lacking = set(range(len(tokens))).difference(vocabulary.values())
    model["vocab"] = vocabulary | {tokens[token_id]: token_id for token_id in sorted(lacking)}


def _added(fields: dict[str, Any], tokens: Strings, kinds: list[int]) -> list[dict[str, Any]]:
    """The tokens that are found in a text before it is split, without those that classes of transformers add for the
    model that they were made for."""
    added = {each["id"]: each for each in fields["added_tokens"] if each["id"] < len(tokens)}
    for token_id, kind in enumerate(kinds):
        if kind in ADDED and fields["model"]["vocab"].get(tokens[token_id]) == token_id:
            flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
            added[token_id] = {"id": token_id, "content": tokens[token_id], "special": kind == CONTROL} | flags
    return [added[token_id] for token_id in sorted(added)]


def added_tokens(file: GgufFile) -> dict[str, int]:
    """The ids of the tokens that are found in a text before it is split."""
    tokens, kinds = _tokens(file), file.metadata.get(f"{PREFIX}token_type")
    if not isinstance(kinds, np.ndarray) or len(kinds) != len(tokens):
        return {}
    return {tokens[token_id]: token_id for token_id in np.flatnonzero(np.isin(kinds, ADDED)).tolist()}


def tokenizer_config(file: GgufFile) -> dict[str, Any]:
    """The fields of tokenizer_config.json: special tokens and chat templates."""
    tokens = _tokens(file)
    fields: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    for name, key in SPECIAL.items():
        token_id = _token_id(file, key, len(tokens))
        if token_id is not None:
            fields[name] = tokens[token_id]
    prefix = "tokenizer.chat_template"
    templates = {
        "default" if key == prefix else key.removeprefix(f"{prefix}."): value
        for key, value in file.metadata.items()
        if (key == prefix or key.startswith(f"{prefix}.")) and isinstance(value, str)
    }
    if templates.keys() == {"default"}:
        fields["chat_template"] = templates["default"]
    elif templates:
        fields["chat_template"] = [{"name": name, "template": text} for name, text in templates.items()]
    return fields


def _tokens(file: GgufFile) -> Strings:
    text_of(file.metadata, f"{PREFIX}model")
    tokens = file.metadata.get(f"{PREFIX}tokens")
    if not isinstance(tokens, Strings) or not len(tokens):
        raise ConfigError(f"its metadata has no list {PREFIX}tokens: it is a file without a tokenizer")
    return tokens


def _token_id(file: GgufFile, key: str, num_tokens: int) -> int | None:
    token_id = file.metadata.get(f"{PREFIX}{key}_token_id")
    if token_id is None:
        return None
    if type(token_id) is not int or not 0 <= token_id < num_tokens:
        raise ConfigError(f"{PREFIX}{key}_token_id is {token_id!r}, and there are {num_tokens} tokens")
    return token_id


def _frame(file: GgufFile, tokens: Strings, split: Any) -> dict[str, Any] | None:
    """What is put around a text: the beginning and the end token, where the file says so or llama.cpp would."""
    is_llama = file.metadata.get(f"{PREFIX}model") == "llama"
    is_begun = file.metadata.get(f"{PREFIX}add_bos_token", is_llama or split in BEGINNING)
    is_ended = file.metadata.get(f"{PREFIX}add_eos_token", False)
    ids = {
        "bos": is_begun and _token_id(file, "bos", len(tokens)),
        "eos": is_ended and _token_id(file, "eos", len(tokens)),
    }
    names = {key: tokens[token_id] for key, token_id in ids.items() if token_id is not None and token_id is not False}
    if not names:
        return None
    text: list[dict[str, Any]] = [{"Sequence": {"id": "A", "type_id": 0}}]
    if "bos" in names:
        text.insert(0, {"SpecialToken": {"id": names["bos"], "type_id": 0}})
    if "eos" in names:
        text.append({"SpecialToken": {"id": names["eos"], "type_id": 0}})
    special = {name: {"id": name, "ids": [ids[key]], "tokens": [name]} for key, name in names.items()}
    pair = [*text, {"Sequence": {"id": "B", "type_id": 1}}]
    return {"type": "TemplateProcessing", "single": text, "pair": pair, "special_tokens": special}


def _byte_level() -> dict[str, Any]:
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, Strings) else value.tolist() if isinstance(value, np.ndarray) else value
