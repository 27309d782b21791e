"""Grammars are compiled or refused by name, in the words of what went wrong."""

from __future__ import annotations

import resource
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from decoding.config import EngineConfig
from decoding.core.grammar import Grammar
from decoding.errors import RequestRejected
from decoding.sampling.grammar.builder import GrammarBuilder
from decoding.sampling.grammar.source import MAX_GRAMMAR_CHARS, TokenizerFile
from decoding.sampling.grammar.trial import UNAVAILABLE, TrialLimits, TrialProcess
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
        Grammar("lark", "start: start"),
        Grammar("json_schema", '{"$ref": "#"}'),
        Grammar("regex", "a" * (MAX_GRAMMAR_CHARS + 1)),
    ],
)
def test_what_cannot_be_compiled_is_refused_by_name(grammar: Grammar) -> None:
    with pytest.raises(RequestRejected) as caught:
        BUILDER.build(grammar)
    assert (caught.value.param, caught.value.code) == ("grammar", "invalid_grammar")


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


def test_a_grammar_whose_process_is_killed_is_tried_again_at_once() -> None:
    builder = GrammarBuilder(EngineConfig(), VOCAB_SIZE, frozenset({END}))
    builder.build(Grammar("regex", "a"))
    assert builder._trials is not None
    first = builder._trials._process
    assert first is not None
    first.kill()
    assert builder.build(Grammar("regex", "b")).num_bytes > 0
    assert first.returncode == -signal.SIGKILL


KILLED = (sys.executable, "-c", "import os, sys; sys.stdin.readline(); os.kill(os.getpid(), 9)")
TRIED_BY_ONE_THAT_IS_KILLED = """
import os, sys
from decoding.core.grammar import Grammar
from decoding.sampling.grammar import __main__ as trials
trials._compile = lambda *_: os.kill(os.getpid(), int(sys.argv[1]))
outcome = trials.try_out(Grammar("regex", "a"), None, None)
print(outcome.was_ended, outcome.refusal)
"""


@pytest.mark.parametrize("command", [KILLED, ("/nowhere/at/all",)])
def test_a_grammar_whose_process_is_killed_each_time_is_not_what_is_refused(command: tuple[str, ...]) -> None:
    trials = TrialProcess(TokenizerFile("", VOCAB_SIZE, [END]), TrialLimits(), command)
    for _ in range(2):
        with pytest.raises(RequestRejected, match="the system ended the process") as caught:
            trials.cost_of(Grammar("regex", "a"))
        assert caught.value.code == UNAVAILABLE


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (signal.SIGKILL, "True None"),
        (signal.SIGTERM, "True None"),
        (signal.SIGSEGV, "False the regex grammar broke the compiler, which left with status -11"),
    ],
)
def test_who_ended_the_process_of_one_grammar_is_told_apart(number: signal.Signals, said: str) -> None:
    command = [sys.executable, "-c", TRIED_BY_ONE_THAT_IS_KILLED, str(int(number))]
    assert subprocess.check_output(command, text=True).strip() == said


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
