"""A model believes what came: rates of classes, weights of sources, from the server's view down to a request's."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from decoding.stores.acceptance_model import (
    NUM_STANCES,
    RATES_TRUST,
    AcceptanceModel,
    Levels,
    below,
    catch_up,
    chance_of,
    is_sound,
    learn_hit,
    learn_probe,
    learn_token,
    measured_models,
    new_model,
    rates_of,
    stances_of,
    take_rates,
    unmeasured_model,
)
from decoding.stores.evidence import (
    ADJACENCY,
    CONTEXT,
    FORCED,
    MODEL,
    NGRAM,
    NUM_CLASSES,
    NUM_SOURCES,
    PREDICTION,
    SILENT,
    copied_class,
    foreseen_class,
    listed_classes,
    other_copied_class,
    weight_step,
)
from decoding.stores.session_store import SessionLimits, SessionStore

SOURCES = {"context": CONTEXT, "adjacency": ADJACENCY, "ngram": NGRAM, "model": MODEL, "prediction": PREDICTION}


def classes_of(**said: int) -> NDArray[np.int16]:
    """What the sources say of a token, by their names; the others are silent."""
    classes = np.full(NUM_SOURCES, SILENT, np.int16)
    for name, kind in said.items():
        classes[SOURCES[name]] = kind
    return classes


def named(source: int, weight: float, kind: int = 0) -> int:
    return int(listed_classes(source, kind)[0] + weight_step(weight))


def not_named(source: int, weight: float, kind: int = 0) -> int:
    return int(listed_classes(source, kind)[1] + weight_step(weight))


def chance(model: AcceptanceModel, /, **said: int) -> float:
    classes = classes_of(**said)
    return float(chance_of(model, stances_of(classes), classes))


def learn(model: AcceptanceModel, /, came: bool, times: int = 1, **said: int) -> None:
    classes = classes_of(**said)
    for _ in range(times):
        learn_token(model, stances_of(classes), classes, came)


COPIED, OTHER_COPIED = copied_class(6, False, True, 0.3), other_copied_class(6)
SUCCESSOR, NAMED = named(ADJACENCY, 0.8, 1), named(NGRAM, 0.8, 2)


def test_each_source_is_silent_against_a_token_or_for_it() -> None:
    place = 3 ** (CONTEXT - 1)
    assert stances_of(classes_of()) == 0
    assert stances_of(classes_of(context=OTHER_COPIED)) == place
    assert stances_of(classes_of(context=COPIED)) == 2 * place
    everyone = classes_of(
        context=COPIED,
        adjacency=SUCCESSOR,
        ngram=NAMED,
        model=named(MODEL, 0.9),
        prediction=foreseen_class(FORCED, 0.0),
    )
    assert stances_of(everyone) == NUM_STANCES - 1


def test_by_its_meaning_alone_one_source_is_believed_as_it_says() -> None:
    model = unmeasured_model()
    for source, name in ((ADJACENCY, "adjacency"), (NGRAM, "ngram"), (MODEL, "model")):
        for weight in (0.9, 0.6, 0.2):
            kind = named(source, weight)
            assert chance(model, **{name: kind}) == pytest.approx(float(model.chances[kind]), abs=0.02)


@pytest.mark.parametrize("place", [0, 1, 2], ids=["by meaning", "greedy", "sampled"])
def test_sources_that_agree_are_believed_more_than_where_they_disagree(place: int) -> None:
    model = (unmeasured_model(), *measured_models())[place]
    agreed = chance(model, context=COPIED, adjacency=SUCCESSOR, ngram=NAMED)
    contradicted = [
        chance(model, context=COPIED, adjacency=not_named(ADJACENCY, 0.8, 1), ngram=not_named(NGRAM, 0.8, 2)),
        chance(model, context=OTHER_COPIED, adjacency=SUCCESSOR, ngram=not_named(NGRAM, 0.8, 2)),
        chance(model, context=OTHER_COPIED, adjacency=not_named(ADJACENCY, 0.8, 1), ngram=NAMED),
    ]
    assert agreed > max(contradicted)


def test_sources_that_agree_are_believed_more_than_either_alone() -> None:
    model = unmeasured_model()
    both = chance(model, context=COPIED, ngram=NAMED)
    assert both > chance(model, context=COPIED)
    assert both > chance(model, ngram=NAMED)


def test_a_source_that_is_always_wrong_loses_and_one_that_is_right_gains() -> None:
    model = below(unmeasured_model(), 64.0, 0.02, 16.0)
    wrong, right = named(ADJACENCY, 0.95), named(NGRAM, 0.2)
    before = chance(model, adjacency=wrong), chance(model, ngram=right)
    learn(model, False, 60, adjacency=wrong)
    learn(model, True, 60, ngram=right)
    assert chance(model, adjacency=wrong) < 0.3 < before[0]
    assert chance(model, ngram=right) > 0.7 > before[1]


def test_a_contradicted_source_loses_weight_against_the_one_that_is_right() -> None:
    model = below(unmeasured_model(), 64.0, 0.02, 16.0)
    copied = {"context": COPIED, "ngram": not_named(NGRAM, 0.6)}
    listed = {"context": OTHER_COPIED, "ngram": named(NGRAM, 0.6)}
    assert chance(model, **copied) < 0.9
    for _ in range(80):
        learn(model, True, **copied)
        learn(model, False, **listed)
    assert chance(model, **copied) > 0.8
    assert chance(model, **listed) < 0.2


def test_a_rate_follows_a_change_since_old_observations_are_forgotten() -> None:
    model = below(unmeasured_model(), 32.0, 0.02, 16.0)
    learn(model, True, 2000, ngram=NAMED)
    learn(model, False, 100, ngram=NAMED)
    assert model.chances[NAMED] < 0.1
    assert model.tried[NAMED] == 32


def test_what_is_learned_of_one_class_leaves_the_others_rates_alone() -> None:
    model = unmeasured_model()
    before = model.chances.copy()
    learn(model, True, 10, context=COPIED, ngram=NAMED)
    assert set(np.flatnonzero(model.chances != before).tolist()) == {COPIED, NAMED}


def test_a_level_starts_with_the_view_above_and_keeps_what_it_learns_to_itself() -> None:
    server = unmeasured_model()
    learn(server, False, 50, ngram=NAMED)
    session = below(server, 512.0, 0.005, 64.0)
    assert chance(session, ngram=NAMED) == chance(server, ngram=NAMED)
    assert session.tried.max() <= 64 < server.tried.max()
    learn(session, True, 100, ngram=NAMED)
    assert chance(session, ngram=NAMED) > 2 * chance(server, ngram=NAMED)


def test_numbers_stay_within_their_bounds_whatever_comes() -> None:
    random = np.random.default_rng(3)
    model = below(measured_models()[0], 64.0, 0.05, 16.0)
    sizes = [array.nbytes for array in model if isinstance(array, np.ndarray)]
    for _ in range(20_000):
        classes = random.integers(-1, NUM_CLASSES, NUM_SOURCES).astype(np.int16)
        classes[0] = SILENT
        came = bool(random.random() < 0.2)
        learn_token(model, stances_of(classes), classes, came)
        assert 0 < chance_of(model, stances_of(classes), classes) < 1
    assert [array.nbytes for array in model if isinstance(array, np.ndarray)] == sizes
    assert model.tried.max() <= 64
    assert 0 < model.chances.min() <= model.chances.max() < 1
    assert np.isfinite(model.weights).all()
    stretch = np.log(model.chances / (1 - model.chances))
    np.testing.assert_allclose(model.stretch, stretch, rtol=1e-3, atol=1e-3)


def test_chances_of_never_and_always_are_kept_learnable() -> None:
    chances = np.zeros(NUM_CLASSES, np.float32)
    chances[::2] = 1.0
    model = new_model(chances, np.ones((NUM_STANCES, NUM_SOURCES), np.float32), 16.0)
    assert np.isfinite(model.stretch).all()
    with pytest.raises(AssertionError):
        new_model(chances[1:], np.ones((NUM_STANCES, NUM_SOURCES), np.float32), 16.0)


def test_a_servers_model_starts_as_measured_and_is_its_own() -> None:
    first, again = measured_models(), measured_models()
    learn(first[0], False, 200, ngram=NAMED)
    assert chance(first[0], ngram=NAMED) < chance(again[0], ngram=NAMED)
    for model in again:
        assert 0 < model.chances.min() <= model.chances.max() < 1
        assert np.isfinite(model.weights).all()


def test_sessions_start_from_the_server_and_tenants_share_nothing_but_counts_of_classes() -> None:
    store = SessionStore(SessionLimits(2**18, 2**24, 2**24))
    alice, bob = store.open("alice", "chat"), store.open("bob", "chat")
    own, server = alice.acceptance_models(False)
    assert own is alice.acceptance_models(False)[0], "one for all requests of a session"
    assert server is bob.acceptance_models(False)[1] is store.acceptance_models[False]
    assert bob.acceptance_models(False)[0] is not own
    assert alice.acceptance_models(True)[0] is not own, "sampled requests are learned from apart"
    assert alice.acceptance_models(True)[1] is store.acceptance_models[True]
    assert bob.ngrams is not alice.ngrams
    learn(server, False, 500, ngram=NAMED)
    learn(own, True, 500, ngram=NAMED)
    late = store.open("bob", "another").acceptance_models(False)[0]
    assert chance(late, ngram=NAMED) == chance(server, ngram=NAMED) < chance(own, ngram=NAMED)


def levels_below(server: AcceptanceModel) -> Levels:
    session = below(server, 1000.0, 0.002, 32.0)
    return Levels(below(session, 64.0, 0.01, 32.0), session, server)


def test_every_level_learns_how_often_the_draft_model_is_asked() -> None:
    levels, draw = levels_below(unmeasured_model()), np.random.default_rng(5)
    for _ in range(4000):
        learn_probe(levels, draw.random() < 0.25)
    for model in levels:
        assert model.asked_rate[0] == pytest.approx(0.25, abs=0.15)


def test_the_draft_models_hits_are_counted_and_apart_where_the_stores_were_wrong() -> None:
    model = below(unmeasured_model(), 64.0, 0.01, 32.0)
    for number in range(2000):
        is_known = number % 4 > 0  # what the stores know the draft model knows as well, and half of the rest
        learn_hit(model, is_known or number % 8 > 0, is_known)
    assert model.hit_rate[0] == pytest.approx(7 / 8, abs=0.1)
    assert model.rescue_rate[0] == pytest.approx(1 / 2, abs=0.1)


@pytest.mark.parametrize("came", [True, False])
def test_a_rate_of_always_or_never_is_not_reached_and_from_outside_not_taken(*, came: bool) -> None:
    model = below(unmeasured_model(), 64.0, 0.05, 32.0)
    for _ in range(5000):
        learn_hit(model, came, False)
    assert is_sound(model)
    rates = model.hit_rate, model.rescue_rate
    for rate in rates:
        assert 0 < min(rate[0], 1 - rate[0]) < 1e-3
        learned = rate.copy()
        for strange in ((float(came), 16.0), (0.5, 0.0)):  # the second would be the first after one more token
            rate[:] = strange
            assert not is_sound(model)
        rate[:] = learned


def test_while_the_draft_model_is_not_asked_what_was_thought_of_it_is_forgotten() -> None:
    levels = levels_below(unmeasured_model())
    first = float(levels.server.hit_rate[0])
    for _ in range(300):
        learn_hit(levels.request, False, False)
        learn_hit(levels.session, False, False)
    learned = [float(model.hit_rate[0]) for model in levels]
    assert learned[0] < learned[1] < learned[2] == first
    for _ in range(100):
        learn_probe(levels, True)
    assert [float(model.hit_rate[0]) for model in levels] == learned
    for _ in range(5000):
        learn_probe(levels, False)
    assert levels.request.hit_rate[0] > first - 0.05
    assert levels.server.hit_rate[0] == first
    assert levels.request.rescue_rate[0] > 0.4


def test_two_who_agree_are_believed_no_more_than_what_they_agree_on_comes() -> None:
    """Each is right nine times in ten, and always the same times: mixed as if they knew of each other's mistakes."""
    independent = np.ones((NUM_STANCES, NUM_SOURCES), np.float32)
    model = below(new_model(unmeasured_model().chances, independent, 16.0), 64, 0.01, 32)
    random = np.random.default_rng(1)
    sure = {"context": copied_class(12, False, True, 0.3), "model": named(MODEL, 0.999)}
    for _ in range(60):
        learn(model, bool(random.random() < 0.9), **sure)
    assert chance(model, **sure) == pytest.approx(0.9, abs=0.06)


def test_a_session_that_has_hardly_asked_the_draft_model_hears_of_it_from_the_server() -> None:
    server = below(unmeasured_model(), 1000.0, 0.002, 32.0)
    session = below(server, 1000.0, 0.01, 32.0)
    for _ in range(100):
        learn_hit(server, True, False)
    catch_up(session, server)
    assert rates_of(session)[0] == (rates_of(server)[0][0], RATES_TRUST)
    for _ in range(20):
        learn_hit(session, False, False)
    own = rates_of(session)
    catch_up(session, server)
    assert rates_of(session) == own, "and then it knows better"


def test_rates_of_a_draft_model_are_taken_over_and_strange_ones_are_not() -> None:
    model, other = unmeasured_model(), unmeasured_model()
    for came in (True, False, True):
        learn_hit(model, came, False)
    take_rates(other, rates_of(model))
    assert rates_of(other) == rates_of(model)
    for strange in ([], [(0.5, 4.0)], [(0.5, 4.0), (1.5, 4.0), (0.5, 4.0)], [(0.5, 4.0), (0.5, 0.0), (0.5, 4.0)]):
        with pytest.raises(ValueError, match="no rates"):
            take_rates(other, strange)
    assert rates_of(other) == rates_of(model)
