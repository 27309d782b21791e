"""What forwards cost is timed on the chosen number of threads, and timed anew when that changes."""

from __future__ import annotations

import pytest

from decoding.costs.calibration import LATER_ROUNDS
from decoding.model.threads import NUM_IDLE
from decoding.model.timing import ROWS, Timing
from tests.decoding.model.scripted_model import ScriptedModel

BASE, ROW = 0.004, 1e-4


def quiet(count: int, num_rows: int) -> float:
    """Two threads take half the time."""
    return (BASE + ROW * num_rows) / count


def busy(count: int, num_rows: int) -> float:
    """Two threads take ten times as long."""
    return (BASE + ROW * num_rows) * (1 if count == 1 else 10)


def test_at_start_threads_are_chosen_first_and_the_curve_is_timed_on_them() -> None:
    model = ScriptedModel(quiet)
    curve = Timing(model, clock=model.clock).curve
    assert model.threads.chosen == 2
    assert {count for count, num_rows in model.seen if num_rows == max(ROWS)} == {2}
    assert (curve.base, curve.token) == (pytest.approx(BASE / 2), pytest.approx(ROW / 2))


def test_while_nobody_waits_a_change_of_threads_has_every_size_timed_anew() -> None:
    model = ScriptedModel(quiet)
    timing = Timing(model, clock=model.clock)
    enough = 2 * LATER_ROUNDS * 2 * len(ROWS)  # twice what it takes: trials of threads come between
    for _ in range(enough):
        timing.refine()
    model.seen.clear()
    timing.refine()
    assert not model.seen, "it was measured often enough"
    model.seconds = busy
    for _ in range(NUM_IDLE + enough):
        timing.refine()
    assert model.threads.chosen == 1
    timed = [count for count, num_rows in model.seen if num_rows == max(ROWS)]
    assert timed.count(1) >= 2 * LATER_ROUNDS, "at either context"
    assert set(timed) == {1}
    assert (timing.curve.base, timing.curve.token) == (pytest.approx(BASE), pytest.approx(ROW))
