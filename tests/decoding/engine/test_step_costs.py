"""What steps take beside their forwards: one start's figures are held against those of the starts before."""

from __future__ import annotations

from pathlib import Path

from decoding.config import EngineConfig
from decoding.costs.calibration import LONGEST_LATER
from decoding.engine.step_costs import LATER_MEASUREMENTS, MEDIAN_OF, ROUNDS_BETWEEN, Beside, StepCosts
from decoding.model.kept_timings import KeptTimings
from decoding.model.target_model import TargetModel
from tests.models import tiny

QUIET = Beside(plain=1e-4, drafting=1e-4, row=1e-5)
BUSY = Beside(plain=1e-3, drafting=9e-4, row=9e-5)


def test_a_start_on_a_busy_machine_does_not_move_what_earlier_ones_found(tmp_path: Path) -> None:
    model = TargetModel.from_model(tiny("llama"), EngineConfig(max_model_len=64))

    def drafting_at_start(beside: Beside, has_drafted: bool = True) -> float:
        costs = StepCosts(model, None, KeptTimings(tmp_path))
        costs.note_beside(beside, has_drafted, 0.1)
        return costs.curve.draft

    assert [drafting_at_start(QUIET) for _ in range(2)] == [1e-4] * 2
    assert drafting_at_start(BUSY) == 1e-4
    assert drafting_at_start(Beside(plain=1e-4), has_drafted=False) == 0.0
    assert drafting_at_start(QUIET) == 1e-4
    assert [drafting_at_start(BUSY) for _ in range(MEDIAN_OF)][-1] == 9e-4


def test_a_busy_first_start_is_forgotten_while_nobody_waits() -> None:
    costs = StepCosts(TargetModel.from_model(tiny("llama"), EngineConfig(max_model_len=64)), None)
    costs.note_beside(Beside(plain=1e-3), False, 0.1)
    assert not costs.is_beside_due(can_draft=False)
    assert costs.is_beside_due(can_draft=True)
    costs.note_beside(BUSY, True, 0.1)
    num_later = 0
    for _ in range(2 * LATER_MEASUREMENTS * ROUNDS_BETWEEN):
        costs.refine()
        if costs.is_beside_due(can_draft=True):
            costs.note_beside(QUIET, True, 0.1)
            num_later += 1
    assert num_later == LATER_MEASUREMENTS
    assert costs.curve.draft == QUIET.drafting


def test_what_takes_long_to_measure_is_measured_at_starts_alone() -> None:
    costs = StepCosts(TargetModel.from_model(tiny("llama"), EngineConfig(max_model_len=64)), None)
    costs.note_beside(QUIET, True, 2 * LONGEST_LATER)
    for _ in range(2 * ROUNDS_BETWEEN):
        costs.refine()
        assert not costs.is_beside_due(can_draft=True)
