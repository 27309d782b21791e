"""What steps cost in an engine: learned while it runs, and kept for later starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from decoding.config import EngineConfig
from decoding.costs.step_fit import StepKind
from decoding.engine.step_costs import FORGOTTEN_AFTER, KEPT_EVERY, MEDIAN_OF, StepCosts
from decoding.model.kept_timings import KeptTimings
from decoding.model.target_model import TargetModel
from tests.models import tiny

PLAIN, DRAFTED = StepKind(1), StepKind(1, trees=1, nodes=8)


def a_model() -> TargetModel:
    return TargetModel.from_model(tiny("llama"), EngineConfig(max_model_len=64))


def beside(costs: StepCosts) -> float:
    """Seconds of a tree of eight nodes beyond its forward."""
    return costs.curve.draft + 8 * (costs.curve.row - costs.forward_curve.row)


def run_steps(costs: StepCosts, num_steps: int) -> None:
    """A tree takes as long again as a plain forward, a step half of one beside it."""
    for _ in range(num_steps):
        for kind, times in ((PLAIN, 1.5), (DRAFTED, 2.5)):
            rows = [1 + kind.nodes]
            forward = costs.forward_curve.step_seconds(rows, [8])
            costs.note_step(kind, forward + (times - 1) * costs.forward_curve.step_seconds([1], [8]), rows, [8])


def test_a_start_begins_with_what_earlier_ones_learned(tmp_path: Path) -> None:
    model = a_model()
    first = StepCosts(model, None, KeptTimings(tmp_path))
    assert not first.is_measured
    assert beside(first) == 0
    run_steps(first, 32)
    first.end_measuring()
    assert beside(first) > 0
    later = StepCosts(model, None, KeptTimings(tmp_path))
    assert later.is_measured
    assert beside(later) == pytest.approx(beside(first))
    assert not StepCosts(model, None).is_measured


def test_what_is_learned_while_it_runs_is_kept_as_soon_as_nobody_waits(tmp_path: Path) -> None:
    model = a_model()
    first = StepCosts(model, None, KeptTimings(tmp_path))
    first.end_measuring()
    for num_steps, is_kept in ((KEPT_EVERY // 2 - 1, False), (1, True)):
        run_steps(first, num_steps)
        first.refine()
        assert (beside(StepCosts(model, None, KeptTimings(tmp_path))) > 0) == is_kept


def test_forwards_of_the_draft_model_cost_what_they_take_in_steps() -> None:
    costs = StepCosts(a_model(), a_model())
    alone = costs.draft_curve
    assert alone is not None
    quick = 3 * (alone.base + alone.rows_seconds(5 / 3))

    def base() -> float:
        assert costs.draft_curve is not None
        return costs.draft_curve.base / alone.base

    costs.note_draft(9.0, 1, 1)
    assert base() == 1.0, "one slow step moves nothing"
    for _ in range(MEDIAN_OF):
        costs.note_draft(2 * quick, 3, 5)
    assert base() == pytest.approx(2.0)
    costs.note_draft(9.0, 1, 1)
    assert base() == pytest.approx(2.0)
    for _ in range(MEDIAN_OF * FORGOTTEN_AFTER):
        costs.note_draft(0.0, 0, 0)
    assert base() == 1.0, "what was long ago is forgotten"
    for _ in range(MEDIAN_OF):
        costs.note_draft(quick / 2, 3, 5)
    assert base() == 1.0
