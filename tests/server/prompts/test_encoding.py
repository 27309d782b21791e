"""Loading tokenizers and encoding prompts."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest
from msgspec.structs import replace as replace_struct

from decoding.core.token_logprobs import TokenLogprobs
from server.config import ServerSettings
from server.generation.logprobs import prompt_news
from server.http.errors import ApiError
from server.prompts.encoding import EncodedPrompt, PromptReading, encode_prediction, encode_prompts, fill_in_the_middle
from server.prompts.model_files import ModelFiles
from server.prompts.served_model import ServedModel
from server.prompts.special_tokens import SpecialTokens
from server.prompts.tokenizer import Tokenizer, load_tokenizer
from server.schemas.generation import Prediction
from tests.gguf_files import VOCAB_SIZE, write_gguf
from tests.models import tiny
from tests.server.ready import READY
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
    tokenizer = Tokenizer(lambda *_: [], lambda *_: "", names.get, lambda _: None, decoder, 6, SpecialTokens(()))
    assert [tokenizer.token_bytes(token_id) for token_id in (1, 2)] == [b" the", b"\xe2"]
    assert tokenizer.has_byte_tokens


def test_the_middle_is_asked_for_by_the_models_own_tokens() -> None:
    marks = {"<|fim_prefix|>": 1, "<|fim_suffix|>": 2, "<|fim_middle|>": 3}

    def encode(text: str, add_special_tokens: bool, _: bool) -> list[int]:
        return [0] * add_special_tokens + list(text.encode())

    tokenizer = Tokenizer(encode, lambda *_: "", lambda _: None, marks.get, "", 12, SpecialTokens(()))
    prompt = EncodedPrompt(tokenizer.encode("a"), "a")
    asked = fill_in_the_middle(model_with(tokenizer), prompt, "b", PromptReading())
    assert asked == EncodedPrompt([0, 1, ord("a"), 2, ord("b"), 3], "a")
    with pytest.raises(ApiError, match="fill-in-the-middle"):
        fill_in_the_middle(model_with(replace(tokenizer, id_of=lambda _: None)), prompt, "b", PromptReading())


def test_a_begin_token_that_the_tokenizer_adds_has_no_text_and_one_that_the_client_wrote_has() -> None:
    def encode(text: str, add_special_tokens: bool, _: bool) -> list[int]:
        return [0] * add_special_tokens + [0 if letter == "^" else ord(letter) for letter in text]

    def decode(token_ids: Sequence[int], skips: bool) -> str:
        return "".join(chr(each) if each else "" if skips else "^" for each in token_ids)

    model = model_with(Tokenizer(encode, decode, lambda _: None, lambda _: None, "", 12, SpecialTokens("^")))
    for prompt, adds, offsets in (
        ("^ab", True, [0, 0, 1, 2]),
        ("^ab", False, [0, 1, 2]),
        ([0, 97, 98], True, [0, 0, 1]),
    ):
        (encoded,) = encode_prompts(model, [prompt], PromptReading(add_special_tokens=adds))
        scores = [TokenLogprobs(token_id, -1.0, 1, ()) for token_id in encoded.token_ids]
        assert [news and news.offset for news in prompt_news(model.tokenizer, encoded, scores)] == offsets


def model_with(tokenizer: Tokenizer, max_model_len: int = 100) -> ServedModel:
    return ServedModel("toy", tokenizer, None, replace_struct(READY, max_model_len=max_model_len), ServerSettings())


def test_texts_and_ids_are_encoded_alike(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(ModelFiles(str(make_model_folder(tmp_path / "toy")), None), False)
    encoded = encode_prompts(model_with(tokenizer), ["ab", [97, 98]], PromptReading())
    assert [(each.token_ids, each.text) for each in encoded] == [([97, 98], "ab")] * 2


def test_a_text_longer_than_the_context_in_the_longest_tokens_is_refused_before_it_is_encoded(tmp_path: Path) -> None:
    toy = load_tokenizer(ModelFiles(str(make_model_folder(tmp_path / "toy")), None), False)
    assert toy.longest_token == len("<|end|>")

    def forbidden(*_: object) -> NoReturn:
        raise AssertionError("encoded or decoded")

    model = model_with(replace(toy, encode_with=forbidden, decode_with=forbidden))
    for prompt in ("x" * 701, [97] * 100):
        with pytest.raises(ApiError) as refused:
            encode_prompts(model, ["x", prompt], PromptReading())
        assert (refused.value.code, refused.value.param) == ("context_length_exceeded", "prompt")
    assert len(encode_prompts(model_with(toy), ["x" * 701], PromptReading(is_cut=True))[0].token_ids) == 700


def test_the_first_prompt_that_leaves_no_room_for_its_reply_is_the_last_that_is_encoded(tmp_path: Path) -> None:
    toy, seen = load_tokenizer(ModelFiles(str(make_model_folder(tmp_path / "toy")), None), False), list[str]()

    def counted(text: str, add_special_tokens: bool, parse_special: bool) -> list[int]:
        seen.append(text)
        return toy.encode_with(text, add_special_tokens, parse_special)

    model = model_with(replace(toy, encode_with=counted))
    for length, max_tokens, param in ((100, 1, "prompt"), (90, 11, "max_tokens")):
        with pytest.raises(ApiError) as refused:
            encode_prompts(model, ["a", "x" * length, "b"], PromptReading(), max_tokens)
        assert (refused.value.code, refused.value.param) == ("context_length_exceeded", param)
    assert seen == ["", "a", "x" * 100, "", "a", "x" * 90]
    assert len(encode_prompts(model, ["x" * 90, [97] * 90], PromptReading(), 10)) == 2


def test_a_prediction_is_cut_to_what_the_context_can_hold(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(ModelFiles(str(make_model_folder(tmp_path / "toy")), None), False)
    prediction = Prediction(type="content", content="x" * 10**6)
    assert len(encode_prediction(model_with(tokenizer), prediction)) == 700


def test_which_of_several_prompts_is_empty_is_said(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(ModelFiles(str(make_model_folder(tmp_path / "toy")), None), False)
    with pytest.raises(ApiError, match="Prompt 1 is empty"):
        encode_prompts(model_with(tokenizer), ["a", ""], PromptReading())


def test_a_gguf_file_names_its_special_tokens(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "model.gguf", tiny("llama", vocab_size=VOCAB_SIZE, num_hidden_layers=1))
    tokenizer = load_tokenizer(ModelFiles(str(path), None), False)
    assert tokenizer.class_name == "PreTrainedTokenizerFast"
    assert (tokenizer.named["bos_token"], tokenizer.named["eos_token"]) == ("<s>", "<|im_end|>")
