"""Grammars compile beside the steps, each once, and every asker is answered in true words."""

from __future__ import annotations

import threading

import pytest

from decoding.core.grammar import Grammar
from decoding.errors import RequestRejected
from decoding.sampling.grammar.compiler import ENTRY_BYTES, NOT_COMPILED, Compiling, GrammarCompiler
from decoding.sampling.grammar.matcher import CompiledGrammar
from decoding.sampling.grammar.source import rejected
from decoding.sampling.grammar.trial import UNAVAILABLE

PATIENCE = 30.0
GRAMMAR_BYTES = 10_000  # of each compiled one
RAISED = {
    "broken": ZeroDivisionError("the moon is full"),
    "panic": KeyboardInterrupt("no Exception"),
    "refused": rejected("no such rule"),
    "unavailable": RequestRejected("no process is left", "grammar", UNAVAILABLE),
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
        return CompiledGrammar(grammar.text, frozenset(), GRAMMAR_BYTES)


def regex(text: str) -> Grammar:
    return Grammar("regex", text)


def compiled(future: Compiling) -> CompiledGrammar:
    grammar = future.result(PATIENCE)
    assert isinstance(grammar, CompiledGrammar)
    return grammar


def answer(future: Compiling) -> object:
    return compiled(future)._start


def refusal(future: Compiling) -> RequestRejected:
    refused = future.result(PATIENCE)
    assert isinstance(refused, RequestRejected)
    return refused


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


def test_only_the_grammars_last_asked_for_are_kept_as_far_as_their_bytes_go() -> None:
    builder = ScriptedBuilder()
    compiler = GrammarCompiler(builder.build, kept_bytes=4 * (GRAMMAR_BYTES + ENTRY_BYTES + 1))
    for number in range(4):
        answer(compiler.compile(regex(f"{number}")))
    answer(compiler.compile(regex("0")))  # asked for again, so that "1" is the oldest
    for number in (4, 5):
        answer(compiler.compile(regex(f"{number}")))
    builder.asked.clear()
    for text in ("3", "0", "4", "5", "1"):
        answer(compiler.compile(regex(text)))
    assert builder.asked == ["1"]


class Weighed(int):
    """A size that counts how often it is added to another."""

    num_added = 0

    def __radd__(self, other: int) -> int:
        self.num_added += 1
        return other + int(self)


def test_a_grammar_is_weighed_once_however_often_any_is_asked_for() -> None:
    sizes = {f"{number}": Weighed(GRAMMAR_BYTES) for number in range(12)}
    compiler = GrammarCompiler(lambda grammar: CompiledGrammar(None, frozenset(), sizes[grammar.text]))
    for text in list(sizes) * 2:
        compiled(compiler.compile(regex(text)))
    assert [size.num_added for size in sizes.values()] == [1] * len(sizes)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("broken", "the regex grammar cannot be compiled: the moon is full"),
        ("panic", "the regex grammar cannot be compiled: no Exception"),
    ],
)
def test_what_broke_the_compiler_is_told_by_its_own_words_and_tried_again_when_asked_again(
    text: str, words: str
) -> None:
    builder = ScriptedBuilder()
    compiler = GrammarCompiler(builder.build)
    for _ in range(2):
        refused = refusal(compiler.compile(regex(text)))
        assert (refused.message, refused.param, refused.code) == (words, "grammar", NOT_COMPILED)
    assert answer(compiler.compile(regex("good"))) == "good"
    assert builder.asked == [text, text, "good"]


def test_what_the_system_did_not_let_compile_is_tried_again_when_asked_again() -> None:
    builder = ScriptedBuilder()
    compiler = GrammarCompiler(builder.build)
    for _ in range(2):
        assert refusal(compiler.compile(regex("unavailable"))).code == UNAVAILABLE
    assert builder.asked == ["unavailable", "unavailable"]


def test_what_was_refused_stays_refused_without_being_compiled_again() -> None:
    builder = ScriptedBuilder()
    compiler = GrammarCompiler(builder.build)
    for _ in range(2):
        refused = refusal(compiler.compile(regex("refused")))
        assert (refused.message, refused.__traceback__) == ("no such rule", None)
    assert builder.asked == ["refused"]


def test_a_grammar_that_broke_a_reply_is_compiled_again_for_the_next() -> None:
    builder = ScriptedBuilder()
    compiler = GrammarCompiler(builder.build)
    compiled(compiler.compile(regex("a"))).is_spent = True
    assert not compiled(compiler.compile(regex("a"))).is_spent
    assert builder.asked == ["a", "a"]


@pytest.mark.parametrize("text", RAISED)
def test_nothing_of_a_grammar_that_cannot_be_had_is_logged(text: str, caplog: pytest.LogCaptureFixture) -> None:
    error = refusal(GrammarCompiler(ScriptedBuilder().build).compile(regex(text)))
    assert str(RAISED[text]) in str(error), "its caller is told"
    assert str(RAISED[text]) not in caplog.text
    assert f"'{text}'" not in caplog.text
