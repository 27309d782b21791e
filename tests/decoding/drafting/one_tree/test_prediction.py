"""A prediction is followed through edits, and given up and taken up by what the reply does."""

from __future__ import annotations

import numpy as np
import pytest

from decoding.core.tree import IntArray
from decoding.drafting.one_tree.prediction import Prediction, find_place
from decoding.stores.evidence import GUESSED, MATCHED_MORE, MATCHED_ONE, MATCHED_THREE

REPLY: IntArray = np.random.default_rng(0).integers(0, 500, 400).astype(np.int32)


def forwards(prediction: Prediction, reply: IntArray, budget: int = 30) -> int:
    """Steps until the whole reply is out, each one giving the longest right draft and one token more."""
    num_given = steps = 0
    while num_given < len(reply):
        prediction.follow(reply[:num_given])
        left = reply[num_given:].tolist()
        best = 0
        for tokens, reasons in prediction.chains(budget):
            assert 0 < len(tokens) == len(reasons) <= budget
            matched = 0
            while matched < min(len(tokens), len(left)) and tokens[matched] == left[matched]:
                matched += 1
            best = max(best, matched)
        num_given += best + 1
        steps += 1
    prediction.follow(reply)
    return steps


def edited(*edits: tuple[int, int, list[int]]) -> IntArray:
    """The reply with, from the last edit to the first, `count` tokens from a place on replaced."""
    tokens = REPLY.tolist()
    for place, count, new in sorted(edits, reverse=True):
        tokens[place : place + count] = new
    return np.array(tokens, np.int32)


def test_a_right_prediction_is_followed_from_its_first_token_to_its_last() -> None:
    prediction = Prediction(REPLY)
    assert forwards(prediction, REPLY) <= 400 // 31 + 4
    assert prediction.num_found == 400


@pytest.mark.parametrize(
    ("edits", "lost"),
    [
        ([(100, 1, [7777])], 1),
        ([(100, 3, [7777, 7778])], 2),
        ([(100, 0, [7777, 7778, 7779])], 3),
        ([(100, 2, [])], 0),
        ([(40, 2, [7777]), (200, 0, [7778]), (300, 1, [])], 2),
    ],
    ids=["replaced", "replaced by fewer", "predicted too much", "predicted too little", "several"],
)
def test_an_edit_costs_a_few_forwards(edits: list[tuple[int, int, list[int]]], lost: int) -> None:
    prediction = Prediction(edited(*edits))
    assert forwards(prediction, REPLY) <= 400 // 31 + 4 + 5 * len(edits)
    num_found_at_most = len(edited(*edits)) - lost
    assert num_found_at_most - 2 * len(edits) <= prediction.num_found <= num_found_at_most


def test_a_renamed_identifier_is_learned_from_its_first_places() -> None:
    old, new = [901, 902], [801, 802, 803]
    places = range(15, 400, 25)
    reply = np.array(edited(*((place, 0, old) for place in places)), np.int32)
    predicted = np.array(edited(*((place, 0, new) for place in places)), np.int32)
    prediction = Prediction(predicted)
    assert forwards(prediction, reply) <= len(reply) // 31 + 10
    assert prediction.num_found == 400


def test_a_replacement_that_does_not_come_again_is_not_made_again() -> None:
    predicted = np.array(edited(*((place, 0, [901]) for place in range(15, 400, 25))), np.int32)
    reply = predicted.copy()
    reply[15] = 801  # the first one alone was replaced
    prediction = Prediction(predicted)
    assert forwards(prediction, reply) <= len(reply) // 31 + 10


def test_a_place_that_is_not_proven_is_a_guess() -> None:
    prediction = Prediction(REPLY)
    assert [(len(tokens), reasons[:3]) for tokens, reasons in prediction.chains(30)] == [
        (8, [GUESSED, MATCHED_ONE, MATCHED_ONE])
    ]
    prediction.follow(REPLY[:5])
    assert prediction.is_followed
    assert prediction.chains(30) == [(REPLY[5:35].tolist(), [MATCHED_THREE] * 2 + [MATCHED_MORE] * 28)]
    prediction.follow(np.append(REPLY[:5], REPLY[100]).astype(np.int32))
    assert not prediction.is_followed
    assert {reasons[0] for _, reasons in prediction.chains(30)} == {GUESSED}


def test_a_prediction_that_becomes_right_is_taken_up_again() -> None:
    late = np.concatenate((np.arange(1000, 1100, dtype=np.int32), REPLY))
    prediction = Prediction(REPLY)
    assert forwards(prediction, late) <= 100 + 400 // 31 + 10
    assert prediction.num_found >= 395


def test_after_its_end_a_prediction_drafts_nothing() -> None:
    prediction = Prediction(REPLY[:50])
    prediction.follow(REPLY[:50])
    assert prediction.chains(30) == []
    prediction.follow(REPLY)
    assert prediction.num_found == 50


def test_the_longest_match_is_found_and_of_equal_ones_the_nearest_after() -> None:
    tokens = np.array([1, 2, 3, 4, 9, 1, 2, 3, 4, 7, 3], np.int32)
    assert find_place(tokens, np.array([9, 1, 2, 3], np.int32), 0) == 8
    assert find_place(tokens, np.array([3], np.int32), 4) == 8
    assert find_place(tokens, np.array([1, 2, 3, 4], np.int32), 6) == 4 + 5
    assert find_place(tokens, np.array([2], np.int32), 8) == -1
