"""What steps cost is measured at start, and on while nobody waits, so that a busy start is not believed for good."""

from __future__ import annotations

from itertools import count

import pytest

from decoding.costs.calibration import BURST, LATER_ROUNDS, LONGEST_LATER, ROUNDS, Calibration
from decoding.engine.engine import Engine
from decoding.model.timing import ROWS
from tests.decoding.engine.test_engine import SAMPLED, new_engine, prompt_of, reply, request_of

BASE, ROW = 2 * BURST, 1e-4
SIZES = [(rows, context) for context in (8, 512) for rows in ROWS]


class Machine:
    """Rows cost ten times as much while it is busy: for its first `busy_for` measurements."""

    def __init__(self, busy_for: int, base: float = BASE) -> None:
        self.num_asked = count()
        self.num_measured = 0
        self._busy_for = busy_for
        self._base = base

    def measure(self, rows: int, _context: int) -> float:
        self.num_measured += 1
        is_busy = next(self.num_asked) < self._busy_for
        return self._base + ROW * rows * (10 if is_busy else 1)


def test_a_quiet_machine_is_measured_right_at_start() -> None:
    curve = Calibration(SIZES, Machine(busy_for=0).measure).curve
    assert (curve.base, curve.token) == (pytest.approx(BASE), pytest.approx(ROW))


def test_a_busy_moment_at_start_is_not_believed() -> None:
    curve = Calibration(SIZES, Machine(busy_for=len(SIZES)).measure).curve
    assert curve.token == pytest.approx(ROW)


def test_a_busy_start_is_forgotten_while_nobody_waits_and_then_it_is_enough() -> None:
    machine = Machine(busy_for=ROUNDS * len(SIZES))
    calibration = Calibration(SIZES, machine.measure)
    assert calibration.curve.token > 5 * ROW
    for _ in SIZES:
        calibration.refine()
    assert calibration.curve == Calibration(SIZES, Machine(busy_for=0).measure).curve
    for _ in range(2 * LATER_ROUNDS * len(SIZES)):
        calibration.refine()
    assert machine.num_measured == (ROUNDS + LATER_ROUNDS) * len(SIZES)


def test_a_forward_that_is_slow_behind_another_size_alone_is_timed_among_its_like() -> None:
    last = [0]

    def measure(rows: int, _context: int) -> float:
        last.append(rows)
        return BURST / 10 + ROW * rows + (BURST / 5 if last[-2] != rows else 0.0)

    curve = Calibration(SIZES, measure).curve
    assert curve.step_seconds([1], [0]) == pytest.approx(BURST / 10 + ROW, rel=0.1)
    assert last.count(64) == 2 * ROUNDS  # which alone takes longer than a burst


def test_when_forwards_run_in_another_way_later_times_replace_quicker_ones() -> None:
    machine = Machine(busy_for=0)
    calibration = Calibration(SIZES, lambda rows, context: machine.measure(rows, context))
    for _ in range(LATER_ROUNDS * len(SIZES)):
        calibration.refine()
    assert calibration.is_done
    machine = Machine(busy_for=0, base=3 * BASE)
    calibration.start_over()
    assert not calibration.is_done
    for _ in SIZES:
        calibration.refine()
    assert (calibration.curve.base, calibration.curve.token) == (pytest.approx(3 * BASE), pytest.approx(ROW))


def test_one_slow_moment_after_a_change_does_not_leave_a_size_out() -> None:
    machine = Machine(busy_for=0)
    calibration = Calibration(SIZES, lambda rows, context: machine.measure(rows, context))
    machine = Machine(busy_for=0, base=2 * LONGEST_LATER)
    calibration.start_over()
    for _ in SIZES:
        calibration.refine()
    machine = Machine(busy_for=0)
    for _ in SIZES:
        calibration.refine()
    assert (calibration.curve.base, calibration.curve.token) == (pytest.approx(BASE), pytest.approx(ROW))


def test_nobody_waits_for_a_long_forward() -> None:
    machine = Machine(busy_for=0, base=2 * LONGEST_LATER)
    calibration = Calibration(SIZES, machine.measure)
    at_start = machine.num_measured
    calibration.refine()
    assert machine.num_measured == at_start


def test_what_an_earlier_start_measured_is_taken_and_replaced_while_nobody_waits() -> None:
    kept = dict(Calibration(SIZES, Machine(busy_for=0).measure).quickest)
    machine = Machine(busy_for=0, base=3 * BASE)
    calibration = Calibration(SIZES, machine.measure, kept)
    assert machine.num_measured == 0
    assert calibration.curve.base == pytest.approx(BASE)
    for _ in SIZES:
        calibration.refine()
    assert calibration.curve.base == pytest.approx(3 * BASE)


def test_of_what_takes_too_long_to_be_timed_while_nobody_waits_the_likeliest_mistake_is_timed_at_a_start() -> None:
    usual = {(rows, context): BASE + ROW * rows for rows, context in SIZES}
    long = [size for size in SIZES if size[0] > 16]
    asked: list[tuple[int, int]] = []

    def measure(*size: int) -> float:
        asked.append((size[0], size[1]))
        return LONGEST_LATER

    kept = usual | dict.fromkeys(long, 1.5 * LONGEST_LATER) | {long[-1]: 9 * LONGEST_LATER}
    calibration = Calibration(SIZES, measure, kept)
    assert asked == [long[-1]]
    assert calibration.quickest == kept | {long[-1]: LONGEST_LATER}


@pytest.mark.parametrize(
    "kept",
    [dict.fromkeys(SIZES[1:], 0.001), dict.fromkeys([*SIZES, (7, 7)], 0.001)],
    ids=["of fewer sizes", "of more sizes"],
)
def test_what_does_not_fit_is_measured_at_start(kept: dict[tuple[int, int], float]) -> None:
    calibration = Calibration(SIZES, Machine(busy_for=0).measure, kept)
    assert calibration.curve == Calibration(SIZES, Machine(busy_for=0).measure).curve


def test_an_engine_that_has_rested_gives_the_same_tokens() -> None:
    engine: Engine = new_engine()
    plain = reply(engine, request_of("plain", prompt_of(40), SAMPLED))
    for _ in range(3 * len(SIZES)):
        engine.on_idle()
    assert reply(engine, request_of("drafted", prompt_of(40), SAMPLED, "spine")) == plain
