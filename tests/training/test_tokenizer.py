"""The tokenizer and the packed rows."""

from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from decoding.training.recipe import BUNDLED
from decoding.training.texts.corpus import END_OF_TEXT, SKILLS, SPECIAL_TOKENS, generate_documents
from decoding.training.tokenizer import save_tokenizer, train_tokenizer
from decoding.training.tokens import load_corpus, pack_batch, save_corpus, tokenise_mixture

TEXTS = ("Hello  there\n\n\tx = 12_345", "naïve 東京 🦆 \x00\x7f", " leading and trailing ", "#### 42\n", "")


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_tokenizer(0, sample_share=0.02)


def test_every_text_comes_back_unchanged(tokenizer: Tokenizer, tmp_path: Path) -> None:
    save_tokenizer(tokenizer, tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    for text in [
        *TEXTS,
        *(document.text for skill in SKILLS for document in islice(generate_documents(skill, 9, held_out=True), 20)),
    ]:
        assert loaded.decode(loaded(text)["input_ids"]) == text
        assert loaded(text)["input_ids"] == tokenizer.encode(text).ids


def test_every_digit_is_a_token_of_its_own(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("2026").tokens == ["2", "0", "2", "6"]


def test_the_chat_template_writes_the_markers_of_the_corpus(tokenizer: Tokenizer, tmp_path: Path) -> None:
    save_tokenizer(tokenizer, tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    turns = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello!"}]
    text = loaded.apply_chat_template(turns, tokenize=False)
    assert text == "<|user|>Hi<|end|><|assistant|>Hello!<|end|>"
    assert loaded.apply_chat_template(turns[:1], tokenize=False, add_generation_prompt=True).endswith("<|assistant|>")


def test_rows_start_with_documents_and_learn_only_what_is_marked(tokenizer: Tokenizer, tmp_path: Path) -> None:
    save_corpus(tokenise_mixture(tokenizer, 0, 8000, BUNDLED.shares), tmp_path / "corpus.npz")
    corpus = load_corpus(tmp_path / "corpus.npz")
    batch = pack_batch(corpus, 0, 4, 128)
    inputs, targets = batch.inputs.numpy(), batch.targets.numpy()
    assert np.array_equal(inputs[0, :20], corpus.tokens[:20])
    learned = targets[0] >= 0
    assert learned.any()
    assert np.array_equal(targets[0, :-1][learned[:-1]], inputs[0, 1:][learned[:-1]])
    assert corpus.tokens[corpus.starts[1] - 1] == SPECIAL_TOKENS.index(END_OF_TEXT)
    assert 0.5 < corpus.is_learned.mean() < 1.0
