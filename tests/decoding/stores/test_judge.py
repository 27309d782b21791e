"""A judge believes what came: rates of classes, weights of sources, from the server's view down to a request's."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

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
from decoding.stores.judge import (
    EARNED,
    FOUND,
    NUM_STANCES,
    NUM_STEPS,
    PROMISED,
    Judge,
    Levels,
    below,
    chance_of,
    learn_chance,
    learn_look,
    learn_token,
    meant_judge,
    measured_judges,
    new_judge,
    stances_of,
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


def chance(judge: Judge, **said: int) -> float:
    classes = classes_of(**said)
    return float(chance_of(judge, stances_of(classes), classes))


def learn(judge: Judge, came: bool, times: int = 1, **said: int) -> None:
    classes = classes_of(**said)
    for _ in range(times):
        learn_token(judge, stances_of(classes), classes, came)


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
    judge = meant_judge()
    for source, name in ((ADJACENCY, "adjacency"), (NGRAM, "ngram"), (MODEL, "model")):
        for weight in (0.9, 0.6, 0.2):
            kind = named(source, weight)
            assert chance(judge, **{name: kind}) == pytest.approx(float(judge.chances[kind]), abs=1e-4)


@pytest.mark.parametrize("place", [0, 1, 2], ids=["by meaning", "greedy", "sampled"])
def test_sources_that_agree_are_believed_more_than_where_they_disagree(place: int) -> None:
    judge = (meant_judge(), *measured_judges())[place]
    agreed = chance(judge, context=COPIED, adjacency=SUCCESSOR, ngram=NAMED)
    contradicted = [
        chance(judge, context=COPIED, adjacency=not_named(ADJACENCY, 0.8, 1), ngram=not_named(NGRAM, 0.8, 2)),
        chance(judge, context=OTHER_COPIED, adjacency=SUCCESSOR, ngram=not_named(NGRAM, 0.8, 2)),
        chance(judge, context=OTHER_COPIED, adjacency=not_named(ADJACENCY, 0.8, 1), ngram=NAMED),
    ]
    assert agreed > max(contradicted)


def test_sources_that_agree_are_believed_more_than_either_alone() -> None:
    judge = meant_judge()
    both = chance(judge, context=COPIED, ngram=NAMED)
    assert both > chance(judge, context=COPIED)
    assert both > chance(judge, ngram=NAMED)


def test_a_source_that_is_always_wrong_loses_and_one_that_is_right_gains() -> None:
    judge = below(meant_judge(), 64.0, 0.02, 16.0)
    wrong, right = named(ADJACENCY, 0.95), named(NGRAM, 0.2)
    before = chance(judge, adjacency=wrong), chance(judge, ngram=right)
    learn(judge, False, 60, adjacency=wrong)
    learn(judge, True, 60, ngram=right)
    assert chance(judge, adjacency=wrong) < 0.3 < before[0]
    assert chance(judge, ngram=right) > 0.7 > before[1]


def test_a_contradicted_source_loses_weight_against_the_one_that_is_right() -> None:
    judge = below(meant_judge(), 64.0, 0.02, 16.0)
    copied = {"context": COPIED, "ngram": not_named(NGRAM, 0.6)}
    listed = {"context": OTHER_COPIED, "ngram": named(NGRAM, 0.6)}
    assert chance(judge, **copied) < 0.9
    for _ in range(80):
        learn(judge, True, **copied)
        learn(judge, False, **listed)
    assert chance(judge, **copied) > 0.8
    assert chance(judge, **listed) < 0.2


def test_a_rate_follows_a_change_since_old_observations_are_forgotten() -> None:
    judge = below(meant_judge(), 32.0, 0.02, 16.0)
    learn(judge, True, 2000, ngram=NAMED)
    learn(judge, False, 100, ngram=NAMED)
    assert judge.chances[NAMED] < 0.1
    assert judge.tried[NAMED] == 32


def test_what_is_learned_of_one_class_leaves_the_others_rates_alone() -> None:
    judge = meant_judge()
    before = judge.chances.copy()
    learn(judge, True, 10, context=COPIED, ngram=NAMED)
    assert set(np.flatnonzero(judge.chances != before).tolist()) == {COPIED, NAMED}


def test_a_level_starts_with_the_view_above_and_keeps_what_it_learns_to_itself() -> None:
    server = meant_judge()
    learn(server, False, 50, ngram=NAMED)
    session = below(server, 512.0, 0.005, 64.0)
    assert chance(session, ngram=NAMED) == chance(server, ngram=NAMED)
    assert session.tried.max() <= 64 < server.tried.max()
    learn(session, True, 100, ngram=NAMED)
    assert chance(session, ngram=NAMED) > 2 * chance(server, ngram=NAMED)


def test_numbers_stay_within_their_bounds_whatever_comes() -> None:
    random = np.random.default_rng(3)
    judge = below(measured_judges()[0], 64.0, 0.05, 16.0)
    sizes = [array.nbytes for array in judge if isinstance(array, np.ndarray)]
    for _ in range(20_000):
        classes = random.integers(-1, NUM_CLASSES, NUM_SOURCES).astype(np.int16)
        classes[0] = SILENT
        came = bool(random.random() < 0.2)
        learn_token(judge, stances_of(classes), classes, came)
        assert 0 < chance_of(judge, stances_of(classes), classes) < 1
    assert [array.nbytes for array in judge if isinstance(array, np.ndarray)] == sizes
    assert judge.tried.max() <= 64
    assert 0 < judge.chances.min() <= judge.chances.max() < 1
    assert np.isfinite(judge.weights).all()
    stretch = np.log(judge.chances / (1 - judge.chances))
    np.testing.assert_allclose(judge.stretch, stretch, rtol=1e-3, atol=1e-3)


def test_chances_of_never_and_always_are_kept_learnable() -> None:
    chances = np.zeros(NUM_CLASSES, np.float32)
    chances[::2] = 1.0
    judge = new_judge(chances, np.ones((NUM_STANCES, NUM_SOURCES), np.float32), 16.0)
    assert np.isfinite(judge.stretch).all()
    with pytest.raises(AssertionError):
        new_judge(chances[1:], np.ones((NUM_STANCES, NUM_SOURCES), np.float32), 16.0)


def test_a_servers_judge_starts_as_measured_and_is_its_own() -> None:
    first, again = measured_judges(), measured_judges()
    learn(first[0], False, 200, ngram=NAMED)
    assert chance(first[0], ngram=NAMED) < chance(again[0], ngram=NAMED)
    for judge in again:
        assert 0 < judge.chances.min() <= judge.chances.max() < 1
        assert np.isfinite(judge.weights).all()


def test_sessions_start_from_the_server_and_tenants_share_nothing_but_counts_of_classes() -> None:
    store = SessionStore(SessionLimits(2**18, 2**24, 2**24))
    alice, bob = store.open("alice", "chat"), store.open("bob", "chat")
    own, server = alice.judges(False)
    assert own is alice.judges(False)[0], "one for all requests of a session"
    assert server is bob.judges(False)[1] is store.judges[False]
    assert bob.judges(False)[0] is not own
    assert alice.judges(True)[0] is not own, "sampled requests are judged apart"
    assert alice.judges(True)[1] is store.judges[True]
    assert bob.ngrams is not alice.ngrams
    learn(server, False, 500, ngram=NAMED)
    learn(own, True, 500, ngram=NAMED)
    late = store.open("bob", "another").judges(False)[0]
    assert chance(late, ngram=NAMED) == chance(server, ngram=NAMED) < chance(own, ngram=NAMED)


def test_looks_tell_how_likely_tokens_they_find_and_what_that_promised_and_earned() -> None:
    server = meant_judge()
    session = below(server, 1000.0, 0.002, 32.0)
    levels = Levels(below(session, 64.0, 0.01, 32.0), session, server)
    draw = np.random.default_rng(5)
    for _ in range(4000):
        found = draw.random() < 0.25
        chance = 0.97 if found else draw.random() / 4
        learn_chance(levels, chance, 2.0 * found)
        learn_look(levels, found, False, 1.5 * found)
    for judge in levels:
        assert judge.seen.sum() == pytest.approx(1.0, abs=1e-4)
        assert judge.seen[NUM_STEPS - 1] == pytest.approx(0.25, abs=0.15)
        assert judge.seen[: NUM_STEPS // 4].sum() == pytest.approx(0.75, abs=0.15)
        assert judge.looks[PROMISED] == pytest.approx(2.0 * judge.looks[FOUND], rel=1e-3)
        assert judge.looks[EARNED] == pytest.approx(1.5 * judge.looks[FOUND], rel=1e-3)
