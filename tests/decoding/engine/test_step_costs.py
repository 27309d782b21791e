"""What steps take beside their forwards: one start's figures are held against those of the starts before."""

from __future__ import annotations

from pathlib import Path

from decoding.config import EngineConfig
from decoding.engine.step_costs import NUM_STARTS, Beside, StepCosts
from decoding.model.kept_timings import KeptTimings
from decoding.model.target_model import TargetModel
from tests.models import tiny


def test_a_start_on_a_busy_machine_does_not_move_what_earlier_ones_found(tmp_path: Path) -> None:
    model = TargetModel.from_model(tiny("llama"), EngineConfig(max_model_len=64))
    quiet, busy = Beside(plain=1e-4, drafting=1e-4, row=1e-5), Beside(plain=1e-3, drafting=9e-4, row=9e-5)

    def drafting_at_start(beside: Beside, has_drafted: bool = True) -> float:
        costs = StepCosts(model, None, KeptTimings(tmp_path))
        costs.note_beside(beside, has_drafted)
        return costs.curve.draft

    assert [drafting_at_start(quiet) for _ in range(2)] == [1e-4] * 2
    assert drafting_at_start(busy) == 1e-4
    assert drafting_at_start(Beside(plain=1e-4), has_drafted=False) == 0.0
    assert drafting_at_start(quiet) == 1e-4
    assert [drafting_at_start(busy) for _ in range(NUM_STARTS)][-1] == 9e-4
