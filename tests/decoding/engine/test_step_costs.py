"""What steps cost in an engine, by medians of the latest."""

from __future__ import annotations

import torch

from decoding.config import EngineConfig
from decoding.drafting.draft_model.state import DraftCost
from decoding.engine.step_costs import FORGOTTEN_AFTER, MEDIAN_OF, HostStep, StepCosts, harvest_seconds
from decoding.model.target_model import TargetModel
from tests.models import tiny
from tests.pairs import GivenTimings


def a_model() -> TargetModel:
    return TargetModel.from_model(tiny("llama"), EngineConfig(max_model_len=64))


def test_what_a_step_does_beside_its_forwards_is_a_median_of_the_latest() -> None:
    costs = StepCosts(a_model(), None)
    alone = costs.curve.base
    assert costs.draft_curve is None
    for beside in (0.2, 9.0, 0.2):
        costs.note_step(HostStep(beside), [])
    assert costs.curve.base == alone + 0.2, "one slow step moves nothing"
    for _ in range(MEDIAN_OF):
        costs.note_step(HostStep(0.1), [])
    assert costs.curve.base == alone + 0.1


def test_learning_from_logits_costs_something() -> None:
    assert harvest_seconds(1000, torch.device("cpu")) > 0
    costs = StepCosts(a_model(), None)
    assert costs.curve.harvest > 0


def test_forwards_of_the_draft_model_cost_what_they_take_in_steps() -> None:
    costs = StepCosts(a_model(), a_model(), GivenTimings(64))
    alone = costs.draft_curve
    assert alone is not None
    quick = 3 * (alone.base + alone.seconds_of_tokens(5 / 3))

    def note(seconds: float, num_forwards: int = 3, num_tokens: int = 5) -> float:
        """What the forward's base is now, over what was measured of it alone."""
        costs.note_step(
            HostStep(0.0), [DraftCost(seconds / 2, num_forwards, num_tokens - 1), DraftCost(seconds / 2, 1, 1)]
        )
        assert costs.draft_curve is not None
        return costs.draft_curve.base / alone.base

    assert note(9.0) == 1.0, "one slow step moves nothing"
    for _ in range(MEDIAN_OF):
        factor = note(2 * quick)
    assert factor == 2.0
    assert note(9.0) == 2.0
    for _ in range(MEDIAN_OF * FORGOTTEN_AFTER):
        costs.note_step(HostStep(0.0), [DraftCost()])
    assert costs.draft_curve == alone, "what was long ago is forgotten"
    for _ in range(MEDIAN_OF):
        factor = note(quick / 2)
    assert factor == 1.0
