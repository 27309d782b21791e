"""Estimated chances: what they start from, and what a verified tree does to them."""

from itertools import product

import numpy as np
import pytest

from decoding.core.tree import DraftTree
from decoding.drafting.draft_model import priors as draft_model_priors
from decoding.drafting.draft_model.priors import weight_class
from decoding.drafting.spine.priors import NUM_CONTEXT_CLASSES, POOLED, context_class, prior_chances, score_class
from decoding.drafting.stand import priors as stand_priors
from decoding.drafting.stand.priors import candidate_class
from decoding.drafting.tree.beliefs import learn, start_beliefs, step_of
from decoding.drafting.tree.candidates import COUPLED, DETERMINISTIC
from decoding.sampling.verify import walk

WEIGHTS = np.linspace(0, 1, 2001)


def test_beliefs_follow_what_is_accepted_and_count_successors_where_the_copy_failed() -> None:
    beliefs = start_beliefs(prior_chances())
    copied, successor = 0, NUM_CONTEXT_CLASSES
    tree = DraftTree(np.array([1, 2, 3], np.int32), np.array([-1, 0, 0], np.int32), np.array([0, 1, 2], np.int8))
    classes = np.array([0, copied, successor], np.int32)
    before = beliefs.chances.copy()
    for _ in range(40):
        learn(beliefs, classes, tree, walk(tree, np.array([3, 0, 0], np.int32)))
    assert beliefs.chances[copied] < 0.5 * before[copied]
    assert beliefs.chances[successor] > before[successor]
    tried = beliefs.tried.copy()
    learn(beliefs, classes, tree, walk(tree, np.array([2, 0, 0], np.int32)))
    assert (beliefs.tried - tried)[[copied, successor]].tolist() == [1, 0]


def test_a_request_starts_from_its_sources_chances_and_leaves_them_as_they_are() -> None:
    chances = np.array([0.25, 0.5], np.float32)
    beliefs = start_beliefs(chances)
    assert np.array_equal(beliefs.chances, chances)
    assert np.array_equal(beliefs.accepted, beliefs.tried * chances)
    tree = DraftTree(np.array([1, 2], np.int32), np.array([-1, 0], np.int32), np.array([0, 3], np.int8))
    learn(beliefs, np.array([0, 1], np.int32), tree, walk(tree, np.array([2, 0], np.int32)))
    assert beliefs.chances.tolist() == [0.25, np.float32(9 / 17)]
    assert chances.tolist() == [0.25, 0.5]


@pytest.mark.parametrize(("value", "step"), [(1.0, 0), (0.9, 0), (0.8999, 1), (0.5, 1), (0.3, 2), (0.0, 2)])
def test_a_step_begins_at_its_bound(value: float, step: int) -> None:
    assert step_of(value, (0.9, 0.5)) == step


@pytest.mark.parametrize(
    ("suffix_len", "place"),
    [(3, 0), (4, 1), (5, 2), (6, 3), (7, 3), (8, 4), (11, 4), (12, 5), (19, 5), (20, 6), (32, 6)],
)
def test_longer_matches_are_stronger_evidence(suffix_len: int, place: int) -> None:
    assert context_class(suffix_len, 0, False) == 8 * place
    assert context_class(suffix_len, 3, True) == 8 * place + 7


def test_every_class_of_evidence_has_a_chance_of_its_own() -> None:
    copied = {context_class(*known) for known in product(range(3, 33), range(4), (False, True))}
    assert copied == set(range(POOLED))
    successors = {score_class(score, is_bigram) for score, is_bigram in product(WEIGHTS, (False, True))}
    assert successors == set(range(NUM_CONTEXT_CLASSES, len(prior_chances())))
    candidates = {candidate_class(evidence, weight) for evidence, weight in product(range(4 * 4), WEIGHTS)}
    weighed = {weight_class(weight, rank) for weight, rank in product(WEIGHTS, range(3))}
    for temperature in (0.0, 1.0):
        assert weighed == set(range(len(draft_model_priors.prior_chances(temperature))))
        for order in (COUPLED, DETERMINISTIC):
            assert candidates == set(range(len(stand_priors.prior_chances(temperature, order))))
