"""A grammar is compiled beside the steps: nobody waits for another's, and who cannot have one is told why."""

from __future__ import annotations

import gc
from concurrent.futures import Future
from dataclasses import replace

import pytest

from decoding.core.events import Rejected
from decoding.core.grammar import Grammar
from decoding.core.request import FinishReason
from decoding.engine.engine import Engine
from decoding.engine.intake import Intake
from decoding.engine.tally import StepTally
from decoding.sampling.grammar.compiler import Compiling
from decoding.sampling.grammar.source import rejected
from tests.decoding.engine.test_engine import GREEDY, finish, new_engine, prompt_of, request_of
from tests.models import VOCAB_SIZE

FORMED = replace(GREEDY, ignore_eos=False, grammar=Grammar("regex", "a+"))


@pytest.fixture(scope="module")
def float_engine() -> Engine:
    return new_engine()


def waiting_for(engine: Engine) -> Compiling:
    """Whatever grammar is asked for is compiled when the caller of this says so."""
    future: Compiling = Future()
    engine._intake = Intake(VOCAB_SIZE, engine._drafting, engine.sessions, lambda _: future)
    return future


def test_a_request_without_a_grammar_runs_while_one_is_compiled(float_engine: Engine) -> None:
    future = waiting_for(float_engine)
    formed, plain = request_of("formed", prompt_of(9), FORMED), request_of("plain", prompt_of(9), GREEDY)
    for request in (formed, plain):
        float_engine.add(request)
    assert float_engine.stats().waiting == 2
    while plain.finish_reason is None:
        assert not float_engine.step().of(Rejected)
    assert (float_engine.request_ids(), float_engine.has_work) == (["formed"], True)
    assert [*float_engine.compiling_ids] == ["formed"]
    assert float_engine.step().stats is None
    future.set_result(rejected("the moon is full"))
    [refused] = float_engine.step().of(Rejected)
    assert (refused.request_id, refused.param, refused.message) == ("formed", "grammar", "the moon is full")
    assert not float_engine.has_work


def test_a_request_can_be_left_while_its_grammar_is_compiled(float_engine: Engine) -> None:
    waiting_for(float_engine)
    float_engine.add(request_of("gone", prompt_of(9), FORMED))
    finished = float_engine.abort("gone")
    assert finished is not None
    assert (finished.reason, finished.stats.prompt_tokens) == (FinishReason.ABORT, 9)
    assert not float_engine.has_work
    assert float_engine.abort("gone") is None


def test_a_model_without_a_tokenizer_refuses_a_grammar_by_name() -> None:
    engine = new_engine()
    engine.add(request_of("formed", prompt_of(9), FORMED))
    refused = []
    for _ in range(3000):
        refused += engine.step().of(Rejected)
        if not engine.has_work:
            break
    assert [each.param for each in refused] == ["grammar"]


def test_choices_that_share_a_grammar_wait_for_one_compilation() -> None:
    engine = new_engine()
    future: Compiling = Future()
    asked: list[Grammar] = []

    def compile(grammar: Grammar) -> Compiling:
        asked.append(grammar)
        return future

    engine._intake = Intake(VOCAB_SIZE, engine._drafting, engine.sessions, compile)
    for place in range(3):
        engine.add(request_of(f"{place}", prompt_of(9), FORMED))
    future.set_result(rejected("no"))
    assert [each.request_id for each in engine.step().of(Rejected)] == ["0", "1", "2"]
    assert len(asked) == 3
    finish(engine)


def test_a_refusal_that_is_kept_holds_no_step_that_it_was_told_in(float_engine: Engine) -> None:
    others = [each for each in gc.get_objects() if type(each) is StepTally]  # which other tests still hold
    future = waiting_for(float_engine)
    future.set_result(rejected("no"))
    for name in ("first", "second"):
        float_engine.add(request_of(name, prompt_of(9), FORMED))
        assert float_engine.step().of(Rejected)
    gc.collect()
    assert not [each for each in gc.get_objects() if type(each) is StepTally and each not in others]
