"""A draft model with the target's vocabulary, and with another: what both can say, and that the tokens stay."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedModel

from decoding.drafting.draft_model.vocabulary import TokenMap, token_map
from decoding.engine.engine import Engine
from decoding.engine.start import load_engine
from decoding.errors import ConfigError, ModelRefused
from tests.models import VOCAB_SIZE, correlated, tiny
from tests.pairs import CONFIG, GIVEN, NOISE, finish, prompt_of, reply, request_of

METHODS = ["dynamic", "linear", "fixed"]
WORDS = {f"w{token_id}": token_id for token_id in range(VOCAB_SIZE)}


def save(folder: Path, tokenizer: Tokenizer, model: PreTrainedModel | None = None, **special: str) -> str:
    folder.mkdir()
    if model is not None:
        model.save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast"} | special
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return str(folder)


def word_level(vocabulary: dict[str, int]) -> Tokenizer:
    return Tokenizer(models.WordLevel(vocabulary, unk_token="w0"))


def byte_level(tokens: Sequence[str], merges: Sequence[tuple[str, str]] = ()) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE({token: place for place, token in enumerate(tokens)}, list(merges)))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # type: ignore[assignment]
    tokenizer.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    return tokenizer


def sentence_pieces(tokens: Sequence[str]) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE({token: place for place, token in enumerate(tokens)}, []))
    tokenizer.decoder = decoders.Sequence(  # type: ignore[assignment]
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return tokenizer


def map_of(target: str, draft: str, num_tokens: int, num_draft_tokens: int) -> TokenMap | None:
    return token_map(replace(CONFIG, model=target), draft, num_tokens, num_draft_tokens)


def test_tokens_are_alike_by_what_they_spell_and_others_are_read_by_their_last_piece(tmp_path: Path) -> None:
    target = save(tmp_path / "target", byte_level(["a", "b", "\u0120b", "c", "ab", "\u00e2"], [("a", "b")]))
    draft = save(tmp_path / "draft", byte_level(["c", "\u00e2", "b", "a", "\u0120b"]))
    tokens = map_of(target, draft, 8, 6)
    assert tokens is not None
    assert tokens.to_draft[:6].tolist() == [3, 2, 4, 0, 2, 1]
    assert tokens.to_target.tolist() == [3, 5, 1, 0, 2, 8], "the sixth is padding"


def test_another_family_spells_spaces_and_special_tokens_its_own_way(tmp_path: Path) -> None:
    target = save(tmp_path / "target", byte_level(["a", "\u0120a", "<end>", "x"]), eos_token="<end>")
    draft = save(tmp_path / "draft", sentence_pieces(["<end>", "\u2581a", "a", "<0x78>"]), eos_token="<end>")
    tokens = map_of(target, draft, 4, 4)
    assert tokens is not None
    assert tokens.to_draft.tolist() == [2, 1, 0, 3]
    assert tokens.to_target.tolist() == [2, 1, 0, 3]


def test_a_text_that_looks_like_a_special_token_is_none(tmp_path: Path) -> None:
    target = save(tmp_path / "target", byte_level(["a", "<end>"]), eos_token="<end>")
    tokens = map_of(target, save(tmp_path / "draft", byte_level(["a", "<end>"]), bos_token="a"), 2, 2)
    assert tokens is None, "ids mean the same"
    draft = save(tmp_path / "other", byte_level(["a", "<end>", "b"]))
    tokens = map_of(target, draft, 2, 3)
    assert tokens is not None
    assert tokens.to_target.tolist() == [0, 2, 2]


def test_vocabularies_with_little_in_common_are_refused(tmp_path: Path) -> None:
    target = save(tmp_path / "target", word_level(WORDS))
    draft = save(tmp_path / "draft", word_level({"w0": 0} | {f"v{place}": place for place in range(1, 20)}))
    with pytest.raises(ConfigError, match="of its 20 tokens only 1 are spelled like one of the target's"):
        map_of(target, draft, VOCAB_SIZE, 20)


@pytest.fixture(scope="module")
def shuffled_model() -> tuple[PreTrainedModel, dict[str, int]]:
    """The draft model `correlated` in a vocabulary of its own: the same words, at other places."""
    model = correlated("llama", NOISE)
    places = np.random.default_rng(3).permutation(VOCAB_SIZE)
    order = torch.from_numpy(np.argsort(places))  # row i of the new embedding is of word order[i]
    with torch.no_grad():
        for weight in {model.get_input_embeddings().weight, model.get_output_embeddings().weight}:
            weight.copy_(weight[order])
    return model, {word: int(places[token_id]) for word, token_id in WORDS.items()}


@pytest.fixture(scope="module")
def engines(
    tmp_path_factory: pytest.TempPathFactory, shuffled_model: tuple[PreTrainedModel, dict[str, int]]
) -> dict[str, Engine]:
    """With that draft model in the target's vocabulary, and in its own."""
    folder = tmp_path_factory.mktemp("models")
    model = save(folder / "target", word_level(WORDS), tiny("llama"))
    drafts = {
        "same": save(folder / "same", word_level(WORDS), correlated("llama", NOISE)),
        "another": save(folder / "another", word_level(shuffled_model[1]), shuffled_model[0]),
    }
    return {
        name: load_engine(replace(CONFIG, model=model, draft_model=draft, device="cpu"), kept=GIVEN)
        for name, draft in drafts.items()
    }


@pytest.mark.parametrize("method", [*METHODS, "auto"])
def test_a_draft_in_another_vocabulary_drafts_what_it_would_in_the_targets(
    engines: dict[str, Engine], method: str
) -> None:
    accepted = {}
    for name, engine in engines.items():
        engine.start_afresh(0.0)
        assert set(METHODS) <= set(engine.methods)
        plain = reply(engine, request_of("plain", prompt_of(20)))
        request = request_of("drafted", prompt_of(20), method=method, max_nodes=8)
        engine.add(request)
        ended, _ = finish(engine)
        assert request.output.tolist() == plain
        accepted[name] = ended["drafted"].counts.accepted
        assert engine.stats().draft_bytes > 0
    assert accepted["another"] == accepted["same"] > 0


def test_a_model_of_ones_own_has_no_draft_model_unless_one_is_named(tmp_path: Path) -> None:
    model = save(tmp_path / "target", word_level(WORDS), tiny("llama"))
    engine = load_engine(replace(CONFIG, model=model, device="cpu"))
    assert engine.draft_model is None
    assert not set(METHODS) & set(engine.methods)
    with pytest.raises(ModelRefused):
        load_engine(replace(CONFIG, model=model, draft_model=str(tmp_path / "nothing"), device="cpu"))
