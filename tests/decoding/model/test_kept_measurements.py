"""What was measured is there at the next start; what cannot be read or written is measured again."""

from __future__ import annotations

from pathlib import Path

import pytest

from decoding.costs.calibration import LATER_ROUNDS
from decoding.model.kept import measurements
from decoding.model.kept.measurements import KeptMeasurements
from decoding.model.threads import ThreadChoice
from decoding.model.timing import ROWS, ModelTimings, Timing
from tests.decoding.model.scripted_model import ScriptedModel

TIMINGS = ModelTimings(2, 0.001, [(1, 8, 0.5)])


def test_timings_are_read_back_for_the_same_model_on_the_same_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = KeptMeasurements(tmp_path)
    kept.write("a", TIMINGS)
    assert kept.read("a", ModelTimings) == TIMINGS
    assert kept.read("b", ModelTimings) is None
    monkeypatch.setattr(measurements, "machine", lambda: "another one")
    assert kept.read("a", ModelTimings) is None


@pytest.mark.parametrize("text", ["", "{", "[]", '{"threads": "two", "head": 0, "quickest": []}'])
def test_a_broken_file_is_as_if_nothing_had_been_measured(tmp_path: Path, text: str) -> None:
    kept = KeptMeasurements(tmp_path)
    kept.write("a", TIMINGS)
    (file,) = tmp_path.iterdir()
    file.write_text(text)
    assert kept.read("a", ModelTimings) is None


def test_a_folder_that_cannot_be_is_no_failure(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    kept = KeptMeasurements(tmp_path / "file")
    kept.write("a", TIMINGS)
    assert kept.read("a", ModelTimings) is None


def test_the_second_start_runs_no_forward_to_measure_and_has_the_first_ones_curve(tmp_path: Path) -> None:
    model = ScriptedModel(lambda count, num_rows: (0.004 + 1e-4 * num_rows) / count)
    first = Timing(model, KeptMeasurements(tmp_path), model.clock)
    chosen = model.threads.chosen
    model.threads = ThreadChoice([1, 2], 3 - chosen)
    model.seen.clear()
    model.seconds = lambda count, num_rows: (0.003 + 1e-4 * num_rows) / count
    second = Timing(model, KeptMeasurements(tmp_path), model.clock)
    assert second.curve == first.curve
    assert model.threads.chosen == chosen
    assert len(model.seen) <= 1, "a prompt for the chains to follow"
    for _ in range(LATER_ROUNDS * 2 * len(ROWS)):
        second.refine()
    third = Timing(model, KeptMeasurements(tmp_path), model.clock)
    assert third.curve == second.curve != first.curve, "what was refined is kept"
