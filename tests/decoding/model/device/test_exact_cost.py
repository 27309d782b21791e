"""What exact products cost is measured on a model's own layers, and decides whether a GPU uses them unasked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import cycle

import pytest
import torch
from torch import nn

from decoding.config import EngineConfig
from decoding.costs.exact_cost import ExactCost
from decoding.model import target_model
from decoding.model.device import exact_cost as measuring
from decoding.model.self_test import SelfTestReport
from decoding.model.target_model import TargetModel
from tests.models import tiny

pytest.importorskip("triton", reason="Triton is not installed: its kernels are not tested")

CONFIG = EngineConfig(attention="triton", max_model_len=64, threads=1)


class NotedCapture:
    """Notes what is timed instead of running it."""

    def __init__(self) -> None:
        self.launches: list[Callable[[], None]] = []

    def note(self, launch: Callable[[], None]) -> Callable[[], None]:
        self.launches.append(launch)
        return lambda: None

    def reserved_bytes(self) -> int:
        return 0


def scripted(seconds: list[float]) -> Callable[[], object]:
    """A stopwatch that takes so long in each of the measures, and longer in all but one of its rounds."""
    times = cycle([each * slower for each in seconds for slower in (3.0, 2.0, 1.0, 2.0, 3.0)])

    class Stopwatch:
        def stop(self) -> None:
            pass

        def seconds(self) -> float:
            return next(times)

    return Stopwatch


def test_it_is_the_time_of_all_layers_a_token_by_the_quickest_round() -> None:
    model = nn.Sequential(nn.Linear(32, 48), nn.Linear(48, 32, bias=False), nn.Linear(32, 64))
    capture = NotedCapture()
    cost = measuring.exact_cost(model, model[2], capture, scripted([1.1, 1.0, 3.0, 8.0]))  # type: ignore[arg-type]
    assert cost.step == pytest.approx(1.1)
    assert cost.prompt == pytest.approx(3.0 * 4 / 8.0)
    assert len(capture.launches) == 4


def test_the_products_that_are_timed_are_the_layers_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "STEP_ROWS", 3)
    monkeypatch.setattr(measuring, "EXACT_ROWS", 5)
    monkeypatch.setattr(measuring, "PLAIN_ROWS", 7)
    model, capture, seen = nn.Sequential(nn.Linear(32, 48), nn.Linear(48, 32)), NotedCapture(), list[tuple[int, ...]]()

    def noted(rows: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        seen.append((len(rows), *weight.shape))
        return torch.addmm(bias, rows, weight.t()) if bias is not None else rows @ weight.t()

    monkeypatch.setattr(torch.nn.functional, "linear", noted)
    measuring.exact_cost(model, None, capture, scripted([1.0]))  # type: ignore[arg-type]
    for launch in capture.launches:  # of which every other one runs Triton's kernels, interpreted
        launch()
    assert seen == [(3, 48, 32), (3, 32, 48), (7, 48, 32), (7, 32, 48)]


def test_packed_layers_alone_have_nothing_to_measure() -> None:
    head = nn.Linear(4, 8)
    model, stopwatch = nn.Sequential(nn.LayerNorm(4), head), scripted([1.3, 1.0])
    assert measuring.exact_cost(model, head, NotedCapture(), stopwatch) == ExactCost(1.3, 1.0)  # type: ignore[arg-type]
    assert measuring.exact_cost(model[:1], None, NotedCapture(), stopwatch) == ExactCost(1.0, 1.0)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("asked", "cost", "is_exact"),
    [
        (None, ExactCost(1.12, 1.15), True),
        (None, ExactCost(1.05, 1.3), False),
        (None, ExactCost(1.2, 1.0), False),
        (None, None, False),
        (True, None, True),
        (False, ExactCost(1.0, 1.0), False),
    ],
)
def test_unasked_they_are_used_where_they_cost_little(
    monkeypatch: pytest.MonkeyPatch, asked: bool | None, cost: ExactCost | None, is_exact: bool
) -> None:
    monkeypatch.setattr(TargetModel, "_measure_exact", lambda _model, _config: cost)
    monkeypatch.setattr(target_model, "self_test", lambda *_: SelfTestReport(True, True, 0.0))  # others' tests run it
    model = tiny("llama", num_hidden_layers=1, hidden_size=32, intermediate_size=32, vocab_size=64)
    found = TargetModel.from_model(model, replace(CONFIG, exact=asked))
    assert found.is_row_exact == is_exact
    assert found.exact_cost == cost
