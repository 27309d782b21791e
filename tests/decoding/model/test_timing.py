"""What forwards cost is timed on the chosen number of threads, and timed anew when that changes."""

from __future__ import annotations

from decoding.config import EngineConfig
from decoding.costs.calibration import LATER_ROUNDS
from decoding.model.target_model import TargetModel
from decoding.model.threads import NUM_IDLE, ThreadChoice
from decoding.model.timing import ROWS, Timing
from tests.models import tiny


class Scripted(ThreadChoice):
    """Two threads take half the time of one until `is_busy`, ten times as long from then on; numbers of rows seen."""

    def __init__(self) -> None:
        super().__init__([1, 2], 1)
        self.is_busy = False
        self.seen: list[tuple[int, int]] = []

    def observe(self, num_rows: int, _seconds: float) -> None:
        self.seen.append((self.count, num_rows))
        factor = 1.0 if self.count == 1 else 10.0 if self.is_busy else 0.5
        super().observe(num_rows, 0.005 * factor)


def scripted_model() -> tuple[TargetModel, Scripted]:
    model = TargetModel.from_model(tiny("llama"), EngineConfig(max_model_len=256))
    choice = model.threads = Scripted()
    return model, choice


def test_at_start_threads_are_chosen_first_and_the_curve_is_timed_on_them() -> None:
    model, choice = scripted_model()
    timing = Timing(model)
    assert choice.chosen == 2
    assert {count for count, num_rows in choice.seen if num_rows == max(ROWS)} == {2}
    assert timing.curve.base > 0


def test_while_nobody_waits_a_change_of_threads_has_every_size_timed_anew() -> None:
    model, choice = scripted_model()
    timing = Timing(model)
    enough = 2 * LATER_ROUNDS * 2 * len(ROWS)  # twice what it takes: trials of threads come between
    for _ in range(enough):
        timing.refine()
    choice.seen.clear()
    timing.refine()
    assert not choice.seen, "it was measured often enough"
    choice.is_busy = True
    for _ in range(NUM_IDLE + enough):
        timing.refine()
    assert choice.chosen == 1
    timed = [count for count, num_rows in choice.seen if num_rows == max(ROWS)]
    assert timed.count(1) >= 2 * LATER_ROUNDS, "at either context"
    assert set(timed) == {1}
