"""Loading tokenizers and encoding prompts."""

import asyncio
from pathlib import Path

import pytest

from decoding.errors import ConfigError
from server.errors import ApiError
from server.model_files import ModelFiles
from server.prompts import SHORT_TEXT, encode_prompts
from server.tokenizer import load_tokenizer
from tests.server.servers import make_model_folder


def test_a_folder_with_a_tokenizer_file_is_loaded_without_transformers(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(ModelFiles(str(make_model_folder(tmp_path / "toy")), None), False)
    assert tokenizer.encode("hé") == [104, 0xC3, 0xA9]
    assert tokenizer.decode([104, 0xC3, 0xA9, 256]) == "hé"
    assert not tokenizer.has_byte_tokens


def test_the_bundled_model_has_a_tokenizer() -> None:
    tokenizer = load_tokenizer(ModelFiles("gosling", None), False)
    text = "def f(x):\n    return x  # naïve 你好\n"
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_a_folder_that_is_no_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"config\.json"):
        load_tokenizer(ModelFiles(str(tmp_path), None), False)


def test_long_and_short_texts_are_encoded_alike(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(ModelFiles(str(make_model_folder(tmp_path / "toy")), None), False)
    long_text = "x" * (SHORT_TEXT + 1)
    encoded = asyncio.run(encode_prompts(tokenizer, ["ab", long_text, [97, 98]], 257))
    assert [len(prompt.token_ids) for prompt in encoded] == [2, SHORT_TEXT + 1, 2]
    assert (encoded[0].token_ids, encoded[0].text) == (encoded[2].token_ids, encoded[2].text)


def test_which_of_several_prompts_is_empty_is_said(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(ModelFiles(str(make_model_folder(tmp_path / "toy")), None), False)
    with pytest.raises(ApiError, match="Prompt 1 is empty"):
        asyncio.run(encode_prompts(tokenizer, ["a", ""], 257))
