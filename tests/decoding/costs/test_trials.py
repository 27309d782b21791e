"""Trials are counted by kind of request and price, and what they may read is earned."""

from __future__ import annotations

import pytest

from decoding.costs.credit import SHORT_REPLY, TRIAL_SHARE, credit
from decoding.costs.trials import ALIKE, ENOUGH, Trials


def test_a_trial_is_over_after_enough_steps_at_a_price_and_for_one_kind_of_requests() -> None:
    trials = Trials()
    for _ in range(ENOUGH):
        assert trials.is_open(False, 0.8)
        trials.note_asked(False, 0.8)
    assert not trials.is_open(False, 0.8)
    assert trials.is_open(True, 0.8)
    assert trials.is_open(False, 0.8 * ALIKE)
    assert trials.is_open(False, 0.8 / ALIKE)


def test_what_was_tried_is_known_to_who_goes_on() -> None:
    first = Trials()
    for _ in range(2 * ENOUGH):
        first.note_asked(True, 0.5)
    first.note_asked(False, 0.5)
    second = Trials(first.num_asked)
    assert second.num_asked == first.num_asked
    assert not second.is_open(True, 0.5)
    assert second.is_open(False, 0.5)


def test_reading_is_earned_by_what_was_emitted() -> None:
    trials = Trials()
    assert trials.readable == pytest.approx(TRIAL_SHARE * SHORT_REPLY)
    trials.note_step(200)
    trials.note_step(1, read=5.0)
    assert trials.readable == pytest.approx(TRIAL_SHARE * (SHORT_REPLY + 201) - 5)


def test_a_reply_may_lose_less_to_trials_than_to_all_drafting() -> None:
    for num_emitted in (0, 50, 400):
        assert credit(num_emitted, 0.0, TRIAL_SHARE) == pytest.approx(0.75 * credit(num_emitted, 0.0))
