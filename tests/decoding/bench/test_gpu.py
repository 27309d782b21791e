"""The bench of GPUs: measured where there is one, calculated where there is none, and the page says which."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from decoding.attention.padded import PaddedAttention
from decoding.bench.gpu import contestants
from decoding.bench.gpu.__main__ import main, render
from decoding.bench.gpu.calculated import PAGE
from decoding.bench.gpu.calculated import render as render_calculated
from decoding.bench.gpu.contestants import Measured, Task
from decoding.bench.gpu.cost_model import (
    H100,
    H200,
    HOST_SECONDS,
    LAUNCHES,
    QWEN3,
    Load,
    ModelShape,
    bound_seconds,
    step_seconds,
)
from decoding.cache.step_tensors import StepBuffers, StepRoom
from decoding.config import EngineConfig
from decoding.model.target_model import TargetModel
from tests.models import tiny
from tests.recording import Recorder, RecordingCapture

ROOT = Path(__file__).parents[3]
PLAIN = Load(sequences=1, context=1024)


def test_shapes_have_the_parameters_that_their_names_say() -> None:
    billions = [(model.weights + model.vocab * model.width) / 1e9 for model in QWEN3[1:]]
    assert billions == pytest.approx([8.2, 32.8], rel=0.02)
    assert QWEN3[0].weights / 1e9 == pytest.approx(0.6, rel=0.02), "whose head is its embedding"


@pytest.mark.parametrize("model", QWEN3, ids=lambda model: model.name)
def test_no_way_undercuts_the_bound_and_each_is_quicker_than_the_last(model: object) -> None:
    for gpu in (H100, H200):
        times = [step_seconds(model, gpu, PLAIN, way) for way in LAUNCHES]  # type: ignore[arg-type]
        assert times == sorted(times, reverse=True)
        assert times[-1] > bound_seconds(model, gpu, PLAIN)  # type: ignore[arg-type]


def launches(num_layers: int, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """What a captured forward of a Qwen3 queues, attention apart: matrix products, and everything else."""
    own = tiny("qwen3", num_hidden_layers=num_layers).to(torch.bfloat16)
    model = TargetModel.from_model(own, EngineConfig(attention="padded", threads=1), RecordingCapture())
    step = StepBuffers(model.new_store(8), StepRoom(rows=8, logits=8, tree_rows=8, blocks=8, keys=64)).view(8)
    found = torch.zeros(1, 8, model.layers[0].num_query_heads, model.layers[0].value_dim, dtype=torch.bfloat16)
    with monkeypatch.context() as patched, Recorder() as recorder:
        patched.setattr(PaddedAttention, "attend", lambda *_: found)
        model.run_static(step)
    names = [str(each.call).split(".")[1] for each in recorder.operations]
    return Counter(
        "products" if name in ("mm", "addmm", "linear") else "others" for name in names if "empty" not in name
    )


def test_launches_of_a_layer_are_counted_and_not_guessed(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = launches(3, monkeypatch) - launches(2, monkeypatch)
    assert counted["products"] == LAUNCHES["graphs"].products
    assert counted["others"] == LAUNCHES["graphs"].others
    assert LAUNCHES["graphs"] == LAUNCHES["as they come"]


def test_rows_are_nearly_free_until_products_are_bound_by_computing() -> None:
    seconds = [step_seconds(QWEN3[1], H100, replace(PLAIN, rows=rows), "fused") for rows in (1, 64, 1024)]
    assert seconds[1] < 1.1 * seconds[0]
    assert seconds[2] > 3 * seconds[0]


@pytest.mark.parametrize("model", QWEN3, ids=lambda model: model.name)
def test_two_half_batches_would_take_longer_than_one_of_all(model: ModelShape) -> None:
    """Even if all that the host does fell beside them: each reads the weights and waits for its small kernels."""
    for gpu in (H100, H200):
        for sequences in (2, 8, 32):
            whole, half = (
                step_seconds(model, gpu, replace(PLAIN, sequences=count), "fused")
                for count in (sequences, sequences // 2)
            )
            assert 2 * (half - HOST_SECONDS) > 1.15 * whole


def test_the_page_holds_what_is_calculated_today() -> None:
    assert render_calculated() in (ROOT / PAGE).read_text(encoding="utf-8")


def test_without_a_gpu_it_says_so_and_touches_no_page(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    main(["--page", str(tmp_path / "gpu.md")])
    assert "There is no GPU that torch can use here" in capsys.readouterr().out
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_everybody_continues_the_same_prompts_to_the_same_length() -> None:
    task = Task(model="gosling", device="cpu", prompts=[[5, 6, 7], [8, 9]], max_tokens=4, batches=[1, 2])
    for name in ("Gander, plain", "transformers"):
        measured = contestants.measure(contestants.CONTESTANTS[name](task), task)
        assert [(each.batch, each.tokens) for each in measured] == [(1, 4), (2, 8)]
        assert all(each.seconds > 0 for each in measured)


def test_a_row_of_the_table_is_a_contestant() -> None:
    table = render({"somebody": [Measured(1, 50, 0.5), Measured(8, 400, 0.5)]}, [1, 8])
    assert table.splitlines()[-1] == "| somebody | 100 | 800 |"
