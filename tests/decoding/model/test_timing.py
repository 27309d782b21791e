"""What forwards cost is timed on the chosen number of threads, and timed anew when that changes."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from decoding.cache.batch import StepBatch
from decoding.cache.kv_store import KvStore
from decoding.costs.calibration import LATER_ROUNDS
from decoding.model.device.runner import Forward
from decoding.model.threads import NUM_IDLE, ThreadChoice
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
    assert max(num_rows for _, num_rows in model.seen) == max(ROWS), "no context is run"
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
    assert timed.count(1) >= LATER_ROUNDS
    assert set(timed) == {1}
    assert (timing.curve.base, timing.curve.token) == (pytest.approx(BASE), pytest.approx(ROW))


HEAD = 5e-6


@dataclass
class Captured:
    """Its forwards take as long whatever logits are wanted."""

    model: OnDevice

    def launch(self, batch: StepBatch) -> Forward:
        return self.model.take(BASE + (ROW + HEAD) * batch.num_tokens)


class OnDevice(ScriptedModel):
    def runner_over(self, _store: KvStore, _most_keys: int, _most_rows: int) -> Captured:  # type: ignore[override]
        return Captured(self)

    def launch(self, batch: StepBatch) -> Forward:
        """Operation by operation, where few tokens' logits take as long as one's."""
        num_logits = max(0, len(batch.logit_rows_R) - 16)
        return self.take(3 * BASE + HEAD * num_logits)

    def take(self, seconds: float) -> Forward:
        self.now += seconds
        return Forward(torch.zeros(0, self.vocab_size), lambda: seconds)


def on_device() -> OnDevice:
    return OnDevice(quiet, device=torch.device("cuda"), threads=ThreadChoice([1], 1))


def test_logits_are_timed_where_they_can_be_left_out_and_of_many_tokens() -> None:
    model = on_device()
    head = Timing(model, clock=model.clock).curve.head
    assert head == pytest.approx(HEAD, rel=0.1)
    assert Timing(model, clock=model.clock)._sizes()[-1][0] >= 2 * max(ROWS), "as far as its context reaches"


def test_on_a_device_everything_is_measured_at_start() -> None:
    """Later there is no room to capture forwards in, and no other process was in the way."""
    model = on_device()
    timing = Timing(model, clock=model.clock)
    assert timing._chains is None
    before = model.now
    timing.refine()
    assert (model.now, timing._chains) == (before, None)
