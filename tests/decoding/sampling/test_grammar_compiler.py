"""Grammars compile beside the steps, each once, and every asker is answered in true words."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import cast

import pytest

from decoding.core.grammar import Grammar
from decoding.errors import RequestRejected
from decoding.sampling.grammar_builder import rejected
from decoding.sampling.grammar_compiler import MAX_KEPT, GrammarCompiler
from decoding.sampling.grammar_matcher import CompiledGrammar

PATIENCE = 30.0
RAISED = {
    "broken": ZeroDivisionError("the moon is full"),
    "panic": KeyboardInterrupt("no Exception"),
    "refused": rejected("no such rule"),
}


class ScriptedBuilder:
    """Builds grammars by their text: "slow" once it is let go, those of RAISED never. Notes what it was asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.threads: set[str] = set()
        self.may_go_on = threading.Event()

    def build(self, grammar: Grammar) -> CompiledGrammar:
        self.asked.append(grammar.text)
        self.threads.add(threading.current_thread().name)
        if grammar.text == "slow":
            assert self.may_go_on.wait(PATIENCE)
        if grammar.text in RAISED:
            raise RAISED[grammar.text]
        return cast("CompiledGrammar", grammar.text)


def regex(text: str) -> Grammar:
    return Grammar("regex", text)


def answer(future: Future[CompiledGrammar]) -> object:
    return future.result(PATIENCE)


def test_asking_returns_at_once_while_a_slow_grammar_compiles() -> None:
    builder = ScriptedBuilder()
    compiler = GrammarCompiler(builder.build)
    slow, after = compiler.compile(regex("slow")), compiler.compile(regex("after"))
    assert not slow.done()
    assert not after.done()
    builder.may_go_on.set()
    assert (answer(slow), answer(after)) == ("slow", "after")
    assert builder.threads == {"grammars"}


def test_one_grammar_compiles_once_for_all_that_ask_while_it_compiles_and_later() -> None:
    builder = ScriptedBuilder()
    compiler = GrammarCompiler(builder.build)
    choices = [compiler.compile(regex("slow")) for _ in range(5)]
    builder.may_go_on.set()
    assert {answer(choice) for choice in choices} == {"slow"}
    assert answer(compiler.compile(regex("slow"))) == "slow"
    assert builder.asked == ["slow"]


def test_only_the_grammars_last_asked_for_are_kept() -> None:
    builder = ScriptedBuilder()
    compiler = GrammarCompiler(builder.build)
    for number in range(MAX_KEPT):
        answer(compiler.compile(regex(f"{number}")))
    answer(compiler.compile(regex("0")))  # asked for again, so that "1" is the oldest
    for number in range(MAX_KEPT, MAX_KEPT + 3):
        answer(compiler.compile(regex(f"{number}")))
    builder.asked.clear()
    for text in ("0", "4", "1", "2", "3"):
        answer(compiler.compile(regex(text)))
    assert builder.asked == ["1", "2", "3"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("broken", "the regex grammar cannot be compiled: the moon is full"),
        ("panic", "the regex grammar cannot be compiled: no Exception"),
        ("refused", "no such rule"),
    ],
)
def test_what_went_wrong_is_told_by_its_own_words_and_tried_again_when_asked_again(text: str, words: str) -> None:
    builder = ScriptedBuilder()
    compiler = GrammarCompiler(builder.build)
    for _ in range(2):
        with pytest.raises(RequestRejected) as caught:
            answer(compiler.compile(regex(text)))
        assert (caught.value.message, caught.value.param, caught.value.code) == (words, "grammar", "invalid_grammar")
    assert answer(compiler.compile(regex("good"))) == "good"
    assert builder.asked == [text, text, "good"]
