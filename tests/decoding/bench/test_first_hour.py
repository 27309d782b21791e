"""What is to be measured in the first hour on a GPU runs through on the CPU, small and in Triton's interpreter."""

from __future__ import annotations

import signal
import warnings
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from decoding.bench.gpu.first_hour.__main__ import PARTS, main
from decoding.bench.gpu.first_hour.bench import Bench, corrupted
from decoding.bench.gpu.first_hour.deadline import Found, run

CPU = Bench(torch.device("cpu"), True)


@pytest.mark.slow
@pytest.mark.parametrize("part", PARTS)
def test_a_part_runs_through_and_its_figures_fill_the_page(part: str, tmp_path: Path) -> None:
    pytest.importorskip("triton", reason="Triton is not installed: its kernels are not measured")
    path, page = tmp_path / "found.json", tmp_path / "gpu.md"
    with np.errstate(all="ignore"), warnings.catch_warnings():  # the interpreter's arithmetic is numpy's
        warnings.simplefilter("ignore", RuntimeWarning)
        assert main([part, "--device", "cpu", "--out", str(path), "--seconds", "1200"]) == 0
    found = msgspec.json.decode(path.read_bytes(), type=Found)
    assert found.failed == {}
    assert found.left_out == []
    assert set(found.found) == set(PARTS[part][0](CPU))
    page.write_text("# GPUs\n\n<!-- measured: begin -->\nNothing.\n<!-- measured: end -->\n")
    assert main(["page", str(path), "--page", str(page)]) == 0
    assert f"**{part.capitalize()}**, on " in page.read_text()


def test_what_was_found_before_the_deadline_is_kept(tmp_path: Path) -> None:
    def fails() -> Any:
        raise RuntimeError("CUDA error")

    def meets_the_deadline() -> Any:
        signal.raise_signal(signal.SIGALRM)

    measures = {"one": lambda: {"us": 3.0}, "broken": fails, "long": meets_the_deadline, "other": lambda: 1}
    path = tmp_path / "found.json"
    run(Found(part="kernels", where="here"), measures, 600, path)
    found = msgspec.json.decode(path.read_bytes(), type=Found)
    assert found.found == {"one": {"us": 3.0}}
    assert found.failed == {"broken": "RuntimeError: CUDA error"}
    assert found.left_out == ["long", "other"]


def test_without_a_gpu_it_says_so_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main(["small", "--out", str(tmp_path / "found.json")]) == 1
    assert "no GPU" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_prediction_is_wrong_in_as_many_places_as_it_is_told_to_be() -> None:
    reply = np.arange(4000, dtype=np.int32) % 97
    for rate in (0.0, 0.3, 1.0):
        assert (corrupted(reply, rate, 97, 1) != reply).mean() == pytest.approx(rate, abs=0.03)
