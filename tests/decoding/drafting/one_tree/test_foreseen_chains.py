"""What a request itself knows of its reply, its prediction and its grammar, are candidates among the others."""

from __future__ import annotations

import numpy as np

from decoding.core.request import Request
from decoding.core.tree import Source
from decoding.costs.price import DraftBudget, NodePrice
from decoding.drafting.grammar import TreeGrammar
from decoding.drafting.one_tree.one_tree import OneTree
from decoding.drafting.one_tree.prediction import Prediction
from decoding.stores.acceptance_model import measured_models
from decoding.stores.session import Session
from tests.asking import encode
from tests.decoding.drafting.one_tree.growing import (
    drafter_of,
    grow,
    names_of,
    new_session,
    paths_of,
    request_of,
    teach,
    verify,
)
from tests.decoding.drafting.test_grammar import GRAMMAR

PREDICTED = list(range(100, 160))


def predicting(
    session: Session, request: Request, tokens: list[int] = PREDICTED, has_model: bool = False
) -> tuple[OneTree, Prediction]:
    prediction = Prediction(np.array(tokens, np.int32))
    prediction.follow(request.output)
    return drafter_of(session, request, has_model=has_model, prediction=prediction), prediction


def say(request: Request, tokens: list[int]) -> None:
    request.extend(np.array(tokens, np.int32))


def test_a_predicted_token_is_weighed_with_what_the_stores_say_of_it() -> None:
    session, request = new_session(), request_of([1, 2], max_depth=2)
    teach(session, {(103,): {104: 0.9, 7: 0.05}, (104,): {8: 0.9}})
    say(request, PREDICTED[:4])
    drafter, _ = predicting(session, request)
    names = names_of(drafter.propose(DraftBudget(16)))
    assert names[(104,)] == {Source.PREDICTION, Source.ADJACENCY}
    assert names[(104, 105)] == {Source.PREDICTION}
    assert names[(104, 8)] == {Source.ADJACENCY}
    assert names[(7,)] == {Source.ADJACENCY}
    assert drafter.finish()["prediction"] == 0


def test_a_tree_follows_the_prediction_as_far_as_it_pays_and_no_nodes_are_set_aside() -> None:
    for price, least, most in ((0.0, 30, 30), (0.6, 10, 29), (0.99, 0, 0)):
        request = request_of([1, 2])
        say(request, PREDICTED[:8])
        tree = predicting(new_session(), request)[0].propose(DraftBudget(30, NodePrice(price)))
        assert least <= tree.num_drafted <= most
        assert set(tree.sources[1:].tolist()) <= {Source.PREDICTION}


def test_a_useless_prediction_is_soon_not_drafted_and_a_right_one_more_and_more() -> None:
    drafted = []
    for added in (2, 1):
        session, request = new_session(measured_models()), request_of([99])
        drafter, prediction = predicting(session, request)
        sizes = []
        for _ in range(24):
            tree = drafter.propose(DraftBudget(12, NodePrice(0.3)))
            sizes.append(tree.num_drafted)
            verify(drafter, request, tree, lambda token, added=added: token + added if token < 159 else 99)  # type: ignore[misc]
            prediction.follow(request.output)
        drafted.append(sizes)
    useless, right = drafted
    assert sum(useless[12:]) == 0
    assert max(right[1:4]) == 12


def test_with_temperature_the_predicted_token_is_drafted_by_its_luck_too() -> None:
    sizes = set()
    for seed in range(12):
        request = request_of([1, 2], 1.0, seed)
        say(request, PREDICTED[:8])
        drafter, _ = predicting(new_session(measured_models()), request)
        sizes.add(drafter.propose(DraftBudget(40, NodePrice(0.95))).num_drafted)
    assert len(sizes) > 1


def test_the_draft_model_is_asked_along_a_prediction() -> None:
    request = request_of([1, 2])
    say(request, PREDICTED[:8])
    drafter, _ = predicting(new_session(), request, has_model=True)
    tree, _ = grow(drafter, lambda path: {11 + len(path): 0.9}, DraftBudget(12))
    names = names_of(tree)
    assert names[(108,)] == {Source.PREDICTION}
    assert names[(11,)] == {Source.DRAFT_MODEL}


def test_what_a_grammar_forces_is_drafted_and_the_text_after_it_looked_up() -> None:
    matcher = GRAMMAR.new_matcher()
    forced = matcher.forced()
    assert len(forced) > 2
    session = new_session()
    teach(session, {(*forced[-2:],): {42: 0.9}})
    request = request_of(encode("a name: ").tolist())
    drafter = drafter_of(session, request, grammar=TreeGrammar(request, matcher))
    tree = drafter.propose(DraftBudget(16, NodePrice(0.05)))
    names = names_of(tree)
    assert all(names[tuple(forced[:end])] == {Source.GRAMMAR} for end in range(1, len(forced) + 1))
    assert names[(*forced, 42)] == {Source.ADJACENCY}
    assert tree.sources[1 : len(forced) + 1].tolist() == [Source.GRAMMAR] * len(forced)


def test_what_is_not_among_the_sources_is_not_foreseen() -> None:
    request = request_of([1, 2], sources=["context"])
    say(request, PREDICTED[:8])
    drafter, prediction = predicting(new_session(), request)
    assert drafter.propose(DraftBudget(16)).num_drafted == 0
    assert set(drafter.finish()) == {"context"}
    assert prediction.num_found == 8, "it is counted all the same"


def test_every_predicted_guess_is_drafted_once() -> None:
    request = request_of([1, 2])
    say(request, [*PREDICTED[:6], 7])
    tree = predicting(new_session(), request)[0].propose(DraftBudget(40))
    paths = paths_of(tree)
    assert len(paths) == len(set(paths)) > 8
    assert {path[0] for path in paths} == {PREDICTED[6], PREDICTED[7]}
