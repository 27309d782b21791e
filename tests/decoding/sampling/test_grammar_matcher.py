"""Grammars compile or are refused by name; their state follows a reply, back and forth."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from decoding.config import EngineConfig
from decoding.core.grammar import Grammar
from decoding.errors import RequestRejected
from decoding.model.checkpoint import BUNDLED_FOLDER
from decoding.sampling import grammar_matcher as constraint
from decoding.sampling.grammar_matcher import Constraint, GrammarCompiler
from tests.asking import TOKENIZER, encode

VOCAB_SIZE, END = 2048, 3
COMPILER = GrammarCompiler(EngineConfig(), VOCAB_SIZE, frozenset({0, END}))
PAIR = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "is_set": {"type": "boolean"}},
    "required": ["name", "is_set"],
    "additionalProperties": False,
}


def allowed(grammar: Constraint) -> set[int]:
    bits = np.unpackbits(grammar.mask().view(np.uint8), bitorder="little")
    return set(np.flatnonzero(bits[:VOCAB_SIZE]).tolist())


def accepts(grammar: Grammar, text: str) -> bool:
    """Whether the text may be a whole reply."""
    state = COMPILER.compile(grammar)
    return all(state.try_consume(token) for token in encode(text).tolist()) and state.may_end_with(END)


@pytest.mark.parametrize(
    ("grammar", "good", "bad"),
    [
        (Grammar("json_object", ""), '{"a": [1, {"b": null}]}', "[1]"),
        (Grammar("json_schema", json.dumps(PAIR)), '{"name": "x", "is_set": true}', '{"name": 1, "is_set": true}'),
        (Grammar("regex", "[ab]{2}c?"), "abc", "abd"),
        (Grammar("choice", '["yes", "no \\"x\\"\\n", "é/\\\\"]'), 'no "x"\n', "no"),
        (Grammar("choice", '["yes", "no \\"x\\"\\n", "é/\\\\"]'), "é/\\", "é"),
        (Grammar("lark", 'start: "a" NUMBER\nNUMBER: /[0-9]+/'), "a42", "a"),
    ],
)
def test_each_kind_accepts_its_texts_and_no_other(grammar: Grammar, good: str, bad: str) -> None:
    assert accepts(grammar, good)
    assert not accepts(grammar, bad)


@pytest.mark.parametrize(
    "grammar",
    [
        Grammar("regex", "(a"),
        Grammar("regex", "(?=a)b"),
        Grammar("json_schema", '{"type": "strange"}'),
        Grammar("json_schema", "{"),
        Grammar("json_schema", "[]"),
        Grammar("choice", '"yes"'),
        Grammar("choice", "[]"),
        Grammar("choice", "yes"),
        Grammar("lark", "start: nowhere"),
        Grammar("regex", "a" * (constraint.MAX_GRAMMAR_CHARS + 1)),
    ],
)
def test_what_cannot_be_compiled_is_refused_by_name(grammar: Grammar) -> None:
    with pytest.raises(RequestRejected) as caught:
        COMPILER.compile(grammar)
    assert caught.value.param == "grammar"


def test_a_grammar_that_takes_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constraint, "COMPILE_SECONDS", 0.0)
    with pytest.raises(RequestRejected, match="seconds to compile"):
        COMPILER.compile(Grammar("json_schema", json.dumps({"anyOf": [PAIR] * 300})))


def test_a_model_without_tokenizer_or_end_token_has_no_grammars(tmp_path: Path) -> None:
    elsewhere = replace(EngineConfig(), model=str(tmp_path))
    for compiler in (
        GrammarCompiler(elsewhere, VOCAB_SIZE, frozenset({END})),
        GrammarCompiler(EngineConfig(), VOCAB_SIZE, frozenset()),
    ):
        with pytest.raises(RequestRejected) as caught:
            compiler.compile(Grammar("regex", "a"))
        assert caught.value.param == "grammar"


def test_the_end_token_is_allowed_where_the_grammar_accepts_alone() -> None:
    state = COMPILER.compile(Grammar("regex", "ab?"))
    assert END not in allowed(state)
    assert state.try_consume(int(encode("a")[0]))
    assert allowed(state) == {0, END, int(encode("b")[0])}
    state.consume(int(encode("b")[0]))
    assert allowed(state) == {0, END}
    state.consume(END)
    assert state.may_end_with(END)


def test_rollback_gives_the_state_before() -> None:
    state = COMPILER.compile(Grammar("json_schema", json.dumps(PAIR)))
    masks = [allowed(state)]
    tokens = encode('{"name": "ab", "is_set": true}').tolist()
    for token in tokens:
        assert token in masks[-1]
        assert state.try_consume(token)
        masks.append(allowed(state))
    for mask in reversed(masks[:-1]):
        state.rollback(1)
        assert allowed(state) == mask


def test_what_the_schema_fixes_is_forced() -> None:
    state = COMPILER.compile(Grammar("json_schema", json.dumps(PAIR)))
    forced = state.forced()
    assert TOKENIZER.decode(forced).startswith('{"name":')
    for token in forced:
        assert state.try_consume(token)


def test_a_vocabulary_larger_than_the_tokenizers_has_masks_of_its_size() -> None:
    padded = GrammarCompiler(EngineConfig(model=str(BUNDLED_FOLDER)), VOCAB_SIZE + 100, frozenset({END}))
    mask = padded.compile(Grammar("regex", "[a-c]+")).mask()
    assert 32 * len(mask) >= VOCAB_SIZE + 100
    assert not np.unpackbits(mask.view(np.uint8), bitorder="little")[VOCAB_SIZE : VOCAB_SIZE + 100].any()
