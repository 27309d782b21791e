"""A request whose last probes found nothing worth drafting naps between them, and wakes for what may be worth it."""

from __future__ import annotations

import numpy as np
import pytest

from decoding.core.request import Request
from decoding.costs.price import DraftBudget, NodePrice
from decoding.drafting.grammar import TreeGrammar
from decoding.drafting.one_tree.one_tree import PATIENCE, OneTree
from decoding.drafting.one_tree.prediction import Prediction
from decoding.stores.session import Session
from tests.decoding.drafting.one_tree.growing import (
    drafter_of,
    new_session,
    paths_of,
    request_of,
    teach,
    verify,
)
from tests.decoding.drafting.test_grammar import GRAMMAR

BUDGET, WORTH_NOTHING = DraftBudget(4, NodePrice(0.1)), DraftBudget(4, NodePrice(1.0))


def say(request: Request, *tokens: int) -> None:
    request.extend(np.array(tokens, np.int32))


def probes_of(drafter: OneTree, request: Request, steps: int, budget: DraftBudget = BUDGET) -> list[int]:
    """After how many tokens of a reply of unknown ones it probes."""
    places = []
    for _ in range(steps):
        if drafter.is_awake:
            places.append(request.num_output)
            drafter.probe()
            assert drafter.propose(budget).num_drafted == 0
        say(request, 100 + request.num_output)
    return places


def test_after_some_fruitless_probes_naps_grow_from_two_tokens_to_thirty_two() -> None:
    request = request_of([1, 2])
    places = probes_of(drafter_of(new_session(), request), request, PATIENCE + 140)
    assert np.diff(places).tolist() == [1] * (PATIENCE - 1) + [2, 4, 8, 16, 32, 32, 32]


def test_what_is_found_but_not_worth_drafting_is_no_reason_to_stay_awake() -> None:
    session, request = new_session(), request_of([1])
    teach(session, {(token,): {token + 1: 0.9} for token in range(100, 140)})
    places = probes_of(drafter_of(session, request), request, PATIENCE + 40, WORTH_NOTHING)
    assert np.diff(places).tolist() == [1] * (PATIENCE - 1) + [2, 4, 8, 16]


def test_a_question_does_not_put_to_sleep() -> None:
    request = request_of([1, 2])
    drafter = drafter_of(new_session(), request)
    for _ in range(PATIENCE):
        assert drafter.is_awake
        assert drafter.is_awake
        for _ in range(3):
            drafter.probe()
        say(request, 100 + request.num_output)
    assert not drafter.is_awake
    say(request, 6)
    assert drafter.is_awake, "probes at one token are one"


def asleep(session: Session, sources: list[str]) -> tuple[OneTree, Request]:
    """One that has just woken from a nap of sixteen tokens and not probed yet."""
    request = request_of([1, 2], sources=sources)
    drafter = drafter_of(session, request)
    places = probes_of(drafter, request, PATIENCE + 14)
    while not drafter.is_awake:
        say(request, 20)
    assert request.num_output - places[-1] == 16
    return drafter, request


@pytest.mark.parametrize("added", [1, 2], ids=["accepted", "rejected"])
def test_whoever_drafted_is_awake_at_every_token_as_at_first(added: int) -> None:
    session = new_session()
    teach(session, {(token,): {token + 1: 0.9} for token in range(20, 30)})
    drafter, request = asleep(session, ["adjacency"])
    drafter.probe()
    tree = drafter.propose(BUDGET)
    assert (21,) in paths_of(tree)
    assert (verify(drafter, request, tree, lambda token: token + added) > 0) == (added == 1)
    assert drafter.is_awake
    say(request, 10)
    places = probes_of(drafter, request, PATIENCE + 14)
    assert np.diff(places).tolist() == [1] * (PATIENCE - 1) + [2, 4, 8]


def test_a_reply_that_comes_to_follow_its_prediction_wakes_once() -> None:
    request, prediction = request_of([1, 2]), Prediction(np.arange(50, 90, dtype=np.int32))
    drafter = drafter_of(new_session(), request, prediction=prediction)
    for _ in range(PATIENCE + 62 + 1):  # naps of 2 to 32 tokens, and the first token of another
        if drafter.is_awake:
            drafter.probe()
            drafter.propose(WORTH_NOTHING)
        say(request, 100 + request.num_output)
        prediction.follow(request.output)
    assert not drafter.is_awake
    say(request, 50, 51, 52)
    assert not drafter.is_awake, "nobody has followed it yet"
    prediction.follow(request.output)
    assert drafter.is_awake
    assert drafter.probe() > 0.5
    assert drafter.propose(WORTH_NOTHING).num_drafted == 0
    for token in range(53, 53 + 31):
        say(request, token)
        prediction.follow(request.output)
        assert not drafter.is_awake, "what it follows is not worth it"
    say(request, 84)
    assert drafter.is_awake


def test_a_request_with_a_grammar_never_sleeps() -> None:
    request = request_of([1, 2])
    drafter = drafter_of(new_session(), request, grammar=TreeGrammar(request, GRAMMAR.new_matcher()))
    assert probes_of(drafter, request, 60, WORTH_NOTHING) == list(range(60))
