"""Trials are counted by kind of request and price, and what they may read is earned."""

from __future__ import annotations

import pytest

from decoding.costs.acceptance import PLAIN, Acceptance, Lately
from decoding.costs.credit import SHORT_REPLY, TRIAL_SHARE, credit
from decoding.costs.price import CostCurve, Curves, DraftBudget
from decoding.costs.pricing import Demand, Pricing
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


def demand(**changes: object) -> Demand:
    asked = Demand(None, context=10, tokens_left=100, acceptance=Acceptance(Lately(PLAIN, PLAIN)), hit_rate=0.8)
    return asked._replace(runs_draft_model=True, credit=4.0, trial_credit=3.0)._replace(**changes)


def budget_of(pricing: Pricing, asked: Demand, num_alike: int = 1) -> DraftBudget:
    demands = [asked] * num_alike
    return pricing.budgets(pricing.rate(demands), demands, [0.1] * num_alike)[0]


def dear_pricing() -> Pricing:
    """A token costs 0.9 tokens of plain decoding, with its node."""
    return Pricing(64, Curves(CostCurve(0.8, 0.2, 0.0), CostCurve(0.69, 0.01, 0.0)))


def test_a_source_that_seems_too_dear_is_tried_within_the_replys_share_until_it_is_known() -> None:
    pricing = dear_pricing()
    tried = budget_of(pricing, demand())
    assert tried.is_trial
    assert tried.max_nodes > 0
    assert budget_of(pricing, demand(trial_credit=0.89)).max_nodes == 0, "less than its first token costs"
    assert budget_of(pricing, demand(runs_draft_model=False)).max_nodes == 0
    assert not budget_of(pricing, demand(most_nodes=60, hit_rate=1.0)).is_trial, "a paper's tree learns nothing"
    for _ in range(ENOUGH):
        pricing.note_trial(tried, False)
    assert budget_of(pricing, demand()).max_nodes == 0
    assert budget_of(pricing, demand(is_sampled=True)).is_trial
    assert budget_of(pricing, demand(hit_rate=0.99)).max_nodes > 0, "what is known to pay is asked"


def test_more_requests_at_once_are_other_prices() -> None:
    pricing = Pricing(64, Curves(CostCurve(0.95, 0.05, 0.0), CostCurve(0.6, 0.01, 0.0)))
    alone = budget_of(pricing, demand(hit_rate=0.5))
    for _ in range(ENOUGH):
        pricing.note_trial(alone, False)
    assert not budget_of(pricing, demand(hit_rate=0.5)).is_trial
    assert budget_of(pricing, demand(hit_rate=0.5), 6).is_trial


def test_a_trial_may_read_as_many_tokens_as_take_what_was_earned() -> None:
    pricing = dear_pricing()
    first = budget_of(pricing, demand()).readable
    assert first == pytest.approx(3.0 / 0.01)
    pricing.note_emitted(100, reading=1.0)
    assert budget_of(pricing, demand()).readable == pytest.approx((3.0 + 3.0 - 1.0) / 0.01)
