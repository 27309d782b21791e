"""What is to be measured first on a GPU runs through on the CPU, small, in Triton's interpreter and with the bundled
model; what was found before a stage ended is kept."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from decoding.bench.gpu.first_hour import __main__ as command
from decoding.bench.gpu.first_hour import stages
from decoding.bench.gpu.first_hour.__main__ import main
from decoding.bench.gpu.first_hour.bench import Bench, corrupted
from decoding.bench.gpu.first_hour.record import DeviceFailed, Line, Record, is_record, read_lines
from decoding.bench.gpu.first_hour.stages import STAGES, Run, run_stages

CPU = Bench(torch.device("cpu"), is_small=True)
NAMES = {  # of a stage's measures
    "probe": {"machine", "ceilings", "products of torch, us"},
    "kernels": {
        *("attention, us", "attention, tiles of (64, 32, 4, 3), us", "exact products, us", "products of 4 bits, us"),
        *("commits, us", "draws, us"),
    },
    "model": {
        *("start", "replays, ms", "profile", "compiled after the start", "first tokens, s", "memory"),
        *("gaps beside a prompt, ms", "1 request at 1k", "8 requests at 1k", "32 requests at 1k"),
        *("32 requests at 1k, useless drafts", "1 request at 8k", "32 requests at 4k"),
    },
    "tokens": {"start", "same tokens"},
    "tests": {"tests marked cuda", "tests of kernels"},
    "server": {"health", "start", "same tokens", "1 streams", "8 streams"},
}


@pytest.mark.slow
@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_runs_through_and_its_figures_fill_the_page(stage: str, tmp_path: Path) -> None:
    pytest.importorskip("triton", reason="Triton is not installed: its kernels are not measured")
    page = tmp_path / "gpu.md"
    page.write_text("# GPUs\n\n<!-- measured: begin -->\nNothing.\n<!-- measured: end -->\n")
    given = [stage, "--device", "cpu", "--out", str(tmp_path / "found"), "--seconds", "1200", "--page", str(page)]
    assert main(given) == 0, (tmp_path / "found" / f"{stage}.log").read_text()[-3000:]
    lines = read_lines((tmp_path / "found" / "record.jsonl").read_bytes())
    own = {line.name: line.found for line in lines if line.stage == stage}
    assert set(own) == NAMES[stage]
    assert "by `python -m decoding.bench.gpu.first_hour`" in page.read_text()
    for name, found in own.items():
        if name == "same tokens":
            assert all(each["same"] == each["of"] > 0 for each in found.values())


def test_a_measure_that_fails_is_told_and_the_next_one_runs(tmp_path: Path) -> None:
    def fails() -> Any:
        raise ValueError("no such tile")

    record = Record(tmp_path / "record.jsonl", "kernels")
    assert record.measure("one", lambda: {"us": 3.0}) == {"us": 3.0}
    assert record.measure("broken", fails) is None
    assert record.measure("object", lambda: record, lambda _: "told") is record
    one, broken, other = read_lines((tmp_path / "record.jsonl").read_bytes())
    assert (one.stage, one.name, one.found, one.failed) == ("kernels", "one", {"us": 3.0}, None)
    assert broken.found is None
    assert str(broken.failed).startswith("ValueError: no such tile\n")
    assert "in fails" in str(broken.failed)
    assert other.found == "told"


def test_a_device_that_fails_ends_the_stage(tmp_path: Path) -> None:
    def fails() -> Any:
        raise torch.AcceleratorError("CUDA error: an illegal memory access")

    with pytest.raises(DeviceFailed):
        Record(tmp_path / "record.jsonl", "model").measure("broken", fails)
    assert "illegal" in str(read_lines((tmp_path / "record.jsonl").read_bytes())[0].failed)


def scripted(monkeypatch: pytest.MonkeyPatch, programs: dict[str, str]) -> None:
    """Stages are these programs, with the record's path as argument; others do nothing. The time of one that pauses is
    over once it has written its line."""
    popen = stages.subprocess.Popen

    def started(arguments: Sequence[str], **options: Any) -> Any:
        stage, record = arguments[4], Path(arguments[arguments.index("--record") + 1])
        before = len(record.read_bytes().splitlines()) if record.is_file() else 0
        process = popen([sys.executable, "-c", programs.get(stage, ""), str(record)], **options)
        wait = process.wait

        def until(timeout: float | None = None) -> int:
            if timeout is None or "pause" not in programs.get(stage, ""):
                return wait(None)
            while len(record.read_bytes().splitlines()) == before:
                assert process.poll() is None
            raise subprocess.TimeoutExpired(stage, timeout)

        process.wait = until
        return process

    monkeypatch.setattr(stages.subprocess, "Popen", started)


WRITES = 'import sys; open(sys.argv[1], "ab").write(b\'{"stage":"probe","name":"one","seconds":1.0,"found":7}\\n\')\n'


def test_stages_that_break_or_never_end_leave_what_they_found_and_the_others_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    endless = f"{WRITES}import signal; signal.pause()"
    scripted(monkeypatch, {"probe": f"{WRITES}print('lost'); sys.exit(3)", "kernels": endless, "tokens": WRITES})
    told = run_stages(Run("cpu", tmp_path), ["probe", "kernels", "tokens"], 100.0)
    assert [sentence.partition(" in ")[0].partition(" after ")[0] for sentence in told] == [
        *("probe: status 3", "kernels: status -9", "host: done", "tokens: done"),
    ]
    lines = read_lines((tmp_path / "record.jsonl").read_bytes())
    assert [(line.stage, line.name, line.found) for line in lines if line.failed is None] == [("probe", "one", 7)] * 3
    failed = {line.stage: line.failed for line in lines if line.failed}
    assert failed == {"probe": "status 3: lost\n", "kernels": "status -9: "}


def test_a_stage_without_time_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scripted(monkeypatch, {})
    assert run_stages(Run("cpu", tmp_path), ["probe"], 1.0) == ["probe: no time is left"]
    assert read_lines((tmp_path / "record.jsonl").read_bytes())[0].failed == "no time was left"


def test_without_a_gpu_it_says_so_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main(["probe", "--out", str(tmp_path / "found")]) == 1
    assert "no GPU" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_strangers_file_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "run_stages", lambda *_: pytest.fail("it ran"))
    (tmp_path / "record.jsonl").write_text("mine\n")
    assert main(["probe", "--device", "cpu", "--out", str(tmp_path)]) == 1
    assert "it stays" in capsys.readouterr().err
    assert (tmp_path / "record.jsonl").read_text() == "mine\n"


def test_a_line_that_was_cut_off_is_left_out() -> None:
    whole = msgspec.json.encode(Line(stage="probe", name="one", seconds=1.0)) + b"\n"
    assert [line.name for line in read_lines(whole + whole[:20])] == ["one"]
    assert is_record(whole)
    assert not is_record(b"")


def test_an_unknown_stage_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["prob"])
    assert "there is no stage prob; there are probe, kernels, model" in capsys.readouterr().err


def test_a_prediction_is_wrong_in_as_many_places_as_it_is_told_to_be() -> None:
    reply = np.arange(4000, dtype=np.int32) % 97
    for rate in (0.0, 0.3, 1.0):
        assert (corrupted(reply, rate, 97, 1) != reply).mean() == pytest.approx(rate, abs=0.03)


def test_works_are_timed_together() -> None:
    ran: list[int] = []
    assert CPU.queued_seconds([lambda: ran.append(1), lambda: ran.append(2)]) >= 0
    assert ran == [1, 2] * 3
