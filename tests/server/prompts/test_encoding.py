"""Loading tokenizers and encoding prompts."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from decoding.errors import ConfigError
from server.http.errors import ApiError
from server.prompts.encoding import SHORT_TEXT, EncodedPrompt, PromptReading, encode_prompts, fill_in_the_middle
from server.prompts.model_files import ModelFiles
from server.prompts.tokenizer import Tokenizer, load_tokenizer
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


def test_every_token_has_its_bytes(tmp_path: Path) -> None:
    toy = load_tokenizer(ModelFiles(str(make_model_folder(tmp_path / "toy")), None), False)
    assert [toy.token_bytes(token_id) for token_id in (0, 97, 0xC3, 256, 999)] == [
        b"\0",
        b"a",
        b"\xc3",
        b"<|end|>",
        b"",
    ]
    gosling = load_tokenizer(ModelFiles("gosling", None), False)
    text = "def f(x):\n    return x  # naïve 你好\n"
    assert b"".join(gosling.token_bytes(token_id) for token_id in gosling.encode(text)) == text.encode()


def test_byte_fallback_and_word_marks_are_spelled_out() -> None:
    names = {1: "▁the", 2: "<0xE2>", 3: "▁<PRE>"}
    decoder = '[{"type": "Replace", "pattern": "▁"}, {"type": "ByteFallback"}]'
    tokenizer = Tokenizer(lambda *_: [], lambda *_: "", names.get, lambda _: None, decoder)
    assert [tokenizer.token_bytes(token_id) for token_id in (1, 2)] == [b" the", b"\xe2"]
    assert tokenizer.has_byte_tokens


def test_the_middle_is_asked_for_by_the_models_own_tokens() -> None:
    marks = {"<|fim_prefix|>": 1, "<|fim_suffix|>": 2, "<|fim_middle|>": 3}

    def encode(text: str, add_special_tokens: bool, _: bool) -> list[int]:
        return [0] * add_special_tokens + list(text.encode())

    tokenizer = Tokenizer(encode, lambda *_: "", lambda _: None, marks.get, "")
    prompt = EncodedPrompt(tokenizer.encode("a"), "a")
    asked = asyncio.run(fill_in_the_middle(tokenizer, prompt, "b", PromptReading()))
    assert asked == EncodedPrompt([0, 1, ord("a"), 2, ord("b"), 3], "a")
    with pytest.raises(ApiError, match="fill-in-the-middle"):
        asyncio.run(fill_in_the_middle(replace(tokenizer, id_of=lambda _: None), prompt, "b", PromptReading()))


def test_long_and_short_texts_are_encoded_alike(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(ModelFiles(str(make_model_folder(tmp_path / "toy")), None), False)
    long_text = "x" * (SHORT_TEXT + 1)
    encoded = asyncio.run(encode_prompts(tokenizer, ["ab", long_text, [97, 98]], 257, PromptReading()))
    assert [len(prompt.token_ids) for prompt in encoded] == [2, SHORT_TEXT + 1, 2]
    assert (encoded[0].token_ids, encoded[0].text) == (encoded[2].token_ids, encoded[2].text)


def test_which_of_several_prompts_is_empty_is_said(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(ModelFiles(str(make_model_folder(tmp_path / "toy")), None), False)
    with pytest.raises(ApiError, match="Prompt 1 is empty"):
        asyncio.run(encode_prompts(tokenizer, ["a", ""], 257, PromptReading()))
