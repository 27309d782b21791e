"""Grammars are compiled or refused by name, in the words of what went wrong."""

from __future__ import annotations

import resource
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from decoding.config import EngineConfig
from decoding.core.grammar import Grammar
from decoding.errors import RequestRejected
from decoding.sampling.grammar.builder import GrammarBuilder
from decoding.sampling.grammar.source import MAX_GRAMMAR_CHARS
from decoding.sampling.grammar.trial import TrialLimits
from tests.decoding.sampling.grammar.test_matcher import BUILDER, END, VOCAB_SIZE


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
        Grammar("regex", "a" * (MAX_GRAMMAR_CHARS + 1)),
    ],
)
def test_what_cannot_be_compiled_is_refused_by_name(grammar: Grammar) -> None:
    with pytest.raises(RequestRejected) as caught:
        BUILDER.build(grammar)
    assert caught.value.param == "grammar"


BOMB = Grammar("json_schema", '{"multipleOf": 999983}')  # 6 s and 390 MB, if it is let


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        (TrialLimits(seconds=0.2, num_bytes=2**32), "takes more than 0.2 seconds to compile"),
        (TrialLimits(seconds=60.0, num_bytes=32 * 2**20), "takes more than 32 MiB to compile"),
    ],
)
def test_a_grammar_beyond_the_limits_is_refused_and_the_next_one_compiles(limits: TrialLimits, words: str) -> None:
    builder = GrammarBuilder(EngineConfig(), VOCAB_SIZE, frozenset({END}), limits)
    for _ in range(2):
        with pytest.raises(RequestRejected, match=words):
            builder.build(BOMB)
        assert builder.build(Grammar("regex", "ab?")).num_bytes > 0


def test_what_a_grammar_takes_is_measured() -> None:
    small, large = Grammar("regex", "a"), Grammar("json_schema", '{"multipleOf": 49999}')
    assert BUILDER.build(small).num_bytes + 10 * 2**20 < BUILDER.build(large).num_bytes


def test_a_process_of_trials_that_was_ended_is_started_again() -> None:
    builder = GrammarBuilder(EngineConfig(), VOCAB_SIZE, frozenset({END}))
    builder.build(Grammar("regex", "a"))
    assert builder._trials is not None
    first = builder._trials._process
    assert first is not None
    first.kill()
    with pytest.raises(ChildProcessError, match="ended with status -9"):
        builder.build(Grammar("regex", "b"))
    builder.build(Grammar("regex", "b"))


def test_nothing_of_a_bomb_is_left_in_this_process() -> None:
    builder = GrammarBuilder(EngineConfig(), VOCAB_SIZE, frozenset({END}))
    builder.build(Grammar("regex", "a"))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    num_threads = threading.active_count()
    with pytest.raises(RequestRejected):
        builder.build(BOMB)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 20_000  # KiB
    assert threading.active_count() == num_threads


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
