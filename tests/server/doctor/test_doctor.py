"""What `gander doctor` finds and advises."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from decoding.process.machine import Cores
from server.doctor import doctor, findings
from server.doctor.findings import Finding
from tests.models import tiny

ABOUT = ["Gander", "Processor", "Cores", "Memory", "GPU", "Kernels", "Models", "Exactness"]


def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(findings, "READ_BYTES", 2**16)


def test_all_is_found_and_a_model_is_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    quick(monkeypatch)
    tiny("llama").save_pretrained(tmp_path / "tiny")
    assert doctor.main(str(tmp_path / "tiny"), is_json=True) == 0
    found = json.loads(capsys.readouterr().out)
    assert [each["about"] for each in found] == ABOUT
    assert found[-1]["text"].startswith("tiny: a token's logits have the same bits")


def test_a_model_that_is_not_there_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    quick(monkeypatch)
    assert doctor.main(str(tmp_path / "missing"), is_json=False) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1].startswith("Exactness   not tried: ")


def test_what_is_not_compiled_and_a_model_that_nobody_named_are_said_and_not_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(findings, "is_complete", lambda: False)
    assert findings.kernels().text == "not all compiled yet"
    assert findings.exactness(None, lambda *_: None).text == "not tried"


def test_a_limit_of_cores_is_advised_about() -> None:
    assert findings.cores(Cores(4, 4, None)) == Finding("Cores", "4 cores")
    advice = findings.cores(Cores(2, 64, "control group")).advice
    assert advice == "the control group of this process leaves 2 of 64: more is quicker"


def test_models_of_the_hub_are_counted_where_they_are(tmp_path: Path) -> None:
    (tmp_path / "models--a--b").mkdir()
    assert findings.models({"HF_HUB_CACHE": str(tmp_path)}).text.startswith(f"1 of the hub in {tmp_path}, ")
    assert findings.models({"HF_HUB_CACHE": str(tmp_path / "not" / "yet")}).text.startswith("0 of the hub")
