"""Grammars are compiled or refused by name, in the words of what went wrong."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from decoding.config import EngineConfig
from decoding.core.grammar import Grammar
from decoding.errors import RequestRejected
from decoding.sampling import grammar_builder
from decoding.sampling.grammar_builder import GrammarBuilder
from tests.decoding.sampling.test_grammar_matcher import BUILDER, END, PAIR, VOCAB_SIZE


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
        Grammar("regex", "a" * (grammar_builder.MAX_GRAMMAR_CHARS + 1)),
    ],
)
def test_what_cannot_be_compiled_is_refused_by_name(grammar: Grammar) -> None:
    with pytest.raises(RequestRejected) as caught:
        BUILDER.build(grammar)
    assert caught.value.param == "grammar"


def test_a_grammar_that_takes_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammar_builder, "COMPILE_SECONDS", 0.0)
    with pytest.raises(RequestRejected, match="seconds to compile"):
        BUILDER.build(Grammar("json_schema", json.dumps({"anyOf": [PAIR] * 300})))


def test_a_model_without_tokenizer_or_end_token_has_no_grammars(tmp_path: Path) -> None:
    elsewhere = replace(EngineConfig(), model=str(tmp_path))
    for builder in (
        GrammarBuilder(elsewhere, VOCAB_SIZE, frozenset({END})),
        GrammarBuilder(EngineConfig(), VOCAB_SIZE, frozenset()),
    ):
        with pytest.raises(RequestRejected) as caught:
            builder.build(Grammar("regex", "a"))
        assert caught.value.param == "grammar"


def test_llguidances_own_sentence_is_told() -> None:
    with pytest.raises(RequestRejected, match=r"the lark grammar is refused: .*nowhere") as caught:
        BUILDER.build(Grammar("lark", "start: nowhere"))
    assert caught.value.code == "invalid_grammar"


def test_what_is_raised_while_compiling_is_not_called_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    def matcher(*_: object, **__: object) -> None:
        raise MemoryError("no room for the lexer")

    monkeypatch.setattr("llguidance.LLMatcher", matcher)
    with pytest.raises(MemoryError, match="no room for the lexer"):
        BUILDER.build(Grammar("lark", 'start: "a"'))
