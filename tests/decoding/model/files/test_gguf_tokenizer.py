"""The tokenizer of a GGUF file: which tokens are found whole in a text, and how it is split."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from decoding.errors import ConfigError
from decoding.model.files.gguf_config import token_ids
from decoding.model.files.gguf_file import GgufFile, Strings, read_gguf
from decoding.model.files.gguf_tokenizer import tokenizer_text
from tests.gguf_files import CONTROL, NORMAL, VOCAB_SIZE, write_gguf
from tests.models import tiny

USER_DEFINED = 4


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> GgufFile:
    path = tmp_path_factory.mktemp("whole") / "model.gguf"
    return read_gguf([write_gguf(path, tiny("llama", vocab_size=VOCAB_SIZE, num_hidden_layers=1))])


def changed(file: GgufFile, tokens: dict[str, int], **metadata: Any) -> GgufFile:
    """The file with further tokens at the end, of these kinds."""
    names = [*file.metadata["tokenizer.ggml.tokens"], *tokens]
    kinds = np.append(file.metadata["tokenizer.ggml.token_type"], [*tokens.values()]).astype(np.int32)
    given = {"tokens": strings(names), "token_type": kinds} | metadata
    added = {f"tokenizer.ggml.{name}": value for name, value in given.items()}
    return replace(file, metadata={**file.metadata, **added})


def strings(names: list[str]) -> Strings:
    ends = np.cumsum([len(name.encode()) for name in names])
    return Strings(memoryview("".join(names).encode()), np.stack((np.append(0, ends[:-1]), ends), 1))


def tokenizer_of(file: GgufFile) -> Tokenizer:
    return Tokenizer.from_str(tokenizer_text(file))


def test_added_tokens_are_spelled_with_any_letters(whole: GgufFile) -> None:
    """DeepSeek's, with fullwidth bars, and blanks."""
    control = ["<｜begin▁of▁sentence｜>", "<｜User｜>"]
    others = ["<think>", "  ", "\n\n", "<tool call>"]
    kinds = {"ĠĠ": NORMAL} | dict.fromkeys(control, CONTROL) | dict.fromkeys(others, USER_DEFINED)
    tokenizer = tokenizer_of(changed(whole, kinds, bos_token_id=VOCAB_SIZE + 1))
    assert tokenizer.get_vocab_size() == VOCAB_SIZE + len(kinds)
    assert [tokenizer.id_to_token(VOCAB_SIZE + place) for place in range(len(kinds))] == list(kinds)
    encoded = tokenizer.encode("<｜User｜>a  b\n\n<tool call>")
    assert encoded.tokens == [*control, "a", "  ", "b", "\n\n", "<tool call>"]
    assert tokenizer.decode(encoded.ids) == "a  b\n\n<tool call>"
    special = {token.content for token in tokenizer.get_added_tokens_decoder().values() if token.special}
    assert special == {"<unk>", "<s>", "<|im_end|>", *control}


@pytest.mark.parametrize("kind", [NORMAL, USER_DEFINED])
def test_what_ends_a_reply_is_special_whatever_its_type(kind: int, whole: GgufFile) -> None:
    file = changed(whole, {"<|im_start|>": kind, "<|eot_id|>": kind, "<stop>": kind}, eot_token_id=VOCAB_SIZE + 2)
    assert token_ids(file)["eos_token_id"] == [2, VOCAB_SIZE + 2, VOCAB_SIZE + 1]
    special = {token.content for token in tokenizer_of(file).get_added_tokens_decoder().values() if token.special}
    assert special == {"<unk>", "<s>", "<|im_end|>", "<|eot_id|>", "<stop>"}


@pytest.mark.parametrize(("kind", "lacking"), [("gpt2", "merges"), ("llama", "scores")])
def test_what_a_tokenizer_lacks_is_named(kind: str, lacking: str, whole: GgufFile) -> None:
    metadata = {key: value for key, value in whole.metadata.items() if key != "tokenizer.ggml.merges"}
    with pytest.raises(ConfigError, match=f"its metadata has no list tokenizer.ggml.{lacking}"):
        tokenizer_text(replace(whole, metadata=metadata | {"tokenizer.ggml.model": kind}))


def test_ends_are_known_where_a_file_has_no_types(whole: GgufFile) -> None:
    metadata = {key: value for key, value in whole.metadata.items() if key != "tokenizer.ggml.token_type"}
    tokenizer = tokenizer_of(replace(whole, metadata=metadata))
    assert tokenizer.encode("a<|im_end|>").ids[-1] == 2


@pytest.mark.parametrize(
    ("told", "as_for", "tokens"),
    [
        ("<|begin_of_text|>", "llama-bpe", ["<|begin_of_text|>", "1", "2", "3"]),
        ("<|im_start|>", "qwen2", ["1", "2", "3"]),
        ("<other>", "default", ["1", "2", "3"]),
    ],
)
def test_an_old_file_is_split_as_the_model_whose_tokens_it_has(
    told: str, as_for: str, tokens: list[str], whole: GgufFile, caplog: pytest.LogCaptureFixture
) -> None:
    file = changed(whole, {told: CONTROL}, bos_token_id=VOCAB_SIZE)
    for name in ("pre", "add_bos_token"):
        del file.metadata[f"tokenizer.ggml.{name}"]
    assert tokenizer_of(file).encode("123").tokens == tokens
    assert f"it is split as for {as_for}." in caplog.text


@pytest.mark.parametrize(("given", "first"), [({}, "▁a"), ({"add_space_prefix": False}, "a")])
def test_a_sentencepiece_file_says_whether_a_text_begins_with_a_blank(
    given: dict[str, bool], first: str, whole: GgufFile
) -> None:
    names = ["<unk>", "<s>", "</s>", "▁", "a", "▁a"]
    kinds = np.array([2, CONTROL, CONTROL, *[NORMAL] * 3], np.int32)
    told = {"model": "llama", "tokens": strings(names), "token_type": kinds, "scores": np.zeros(6, np.float32)} | given
    metadata = {key: value for key, value in whole.metadata.items() if not key.startswith("tokenizer.")}
    file = replace(whole, metadata=metadata | {f"tokenizer.ggml.{name}": value for name, value in told.items()})
    tokenizer = tokenizer_of(file)
    encoded = tokenizer.encode("a a", add_special_tokens=False)
    assert encoded.tokens == [first, "▁a"]
    assert tokenizer.decode(encoded.ids) == "a a"
