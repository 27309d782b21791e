"""A model that passed its self-test is not tested again at the next start, unless anything of it or of us differs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from decoding.model import target_model
from decoding.model.kept import earlier_test
from decoding.model.kept.earlier_test import EarlierTest
from decoding.model.kept.measurements import KeptMeasurements
from decoding.model.self_test import SelfTestReport
from decoding.model.target_model import TargetModel
from tests.models import tiny
from tests.pairs import CONFIG

CPU = torch.device("cpu")
PASSED = SelfTestReport(is_exact=True, on_any_threads=True, difference=0.001)


def load(folder: Path, kept: KeptMeasurements, **options: object) -> TargetModel:
    config = replace(CONFIG, model=str(folder), device="cpu", threads=1, **options)  # type: ignore[arg-type]
    return TargetModel.load(config, lambda *_: None, kept)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tiny("llama").save_pretrained(tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture
def kept(tmp_path: Path) -> KeptMeasurements:
    (tmp_path / "kept").mkdir()
    return KeptMeasurements(tmp_path / "kept")


def test_a_second_start_tests_nothing_and_serves_the_same(
    folder: Path, kept: KeptMeasurements, monkeypatch: pytest.MonkeyPatch
) -> None:
    tested: list[Sequence[torch.Tensor]] = []
    self_test = target_model.self_test
    monkeypatch.setattr(target_model, "self_test", lambda *of: tested.append(of[2]) or self_test(*of))
    first, second = load(folder, kept), load(folder, kept)
    assert len(tested) == 1
    assert first.is_exact
    assert second.is_exact
    assert second.fingerprint == first.fingerprint
    load(folder, kept, weights="int4")
    assert len(tested) == 2, "other weights are tested for themselves"


def test_only_the_same_model_run_the_same_way_was_tested(kept: KeptMeasurements) -> None:
    EarlierTest("model", CONFIG, CPU, kept).keep(PASSED)
    assert EarlierTest("model", CONFIG, CPU, kept).report == PASSED
    assert EarlierTest("another", CONFIG, CPU, kept).report is None
    assert EarlierTest("model", replace(CONFIG, kv_dtype="int8"), CPU, kept).report is None
    assert EarlierTest("model", CONFIG, CPU, None).report is None


def test_an_edit_of_our_sources_forgets_it(
    kept: KeptMeasurements, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "source.py"
    source.touch()
    monkeypatch.setattr(earlier_test, "PACKAGE", tmp_path)
    EarlierTest("model", CONFIG, CPU, kept).keep(PASSED)
    assert EarlierTest("model", CONFIG, CPU, kept).report == PASSED
    source.write_text("pass")
    assert EarlierTest("model", CONFIG, CPU, kept).report is None


@pytest.mark.parametrize("report", [SelfTestReport(False, True, 0.0), SelfTestReport(True, False, 0.0)])
def test_what_did_not_pass_is_tested_at_every_start(kept: KeptMeasurements, report: SelfTestReport) -> None:
    assert EarlierTest("model", CONFIG, CPU, kept).keep(report) == report
    assert EarlierTest("model", CONFIG, CPU, kept).report is None


def test_a_device_is_tested_at_every_start(kept: KeptMeasurements) -> None:
    device = torch.device("cuda")
    assert EarlierTest("model", CONFIG, device, kept).keep(PASSED) == PASSED
    assert EarlierTest("model", CONFIG, device, kept).report is None
