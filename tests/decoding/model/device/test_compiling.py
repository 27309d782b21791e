"""Architectures are traced as one graph for every number of rows, with attention as one opaque operation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from decoding.attention.padded import PaddedAttention
from decoding.cache.kv_cache import KvCache
from decoding.config import EngineConfig
from decoding.model import target_model
from decoding.model.device import static_forward
from decoding.model.device.runner import HostStopwatch
from decoding.model.device.static_forward import LEAST_ROWS, CompiledModel
from decoding.model.target_model import TargetModel
from tests.decoding.model.device.test_graph_runner import steps
from tests.models import tiny
from tests.recording import RecordingCapture
from tests.seeing import tiny_seeing

CONFIG = EngineConfig(attention="padded", max_model_len=128, threads=1, compile=True)
ARCHITECTURES = (
    "llama",
    "gemma3_text",
    *(
        pytest.param(each, marks=pytest.mark.slow)
        for each in ("gpt_neox", "qwen2", "qwen3", "mistral", "gemma2", "phi3", "olmo2", "smollm3")
    ),
)


class Counting:
    """A compiler that runs what was traced as it is; graphs: how often it was called, operations: seen in them, runs:
    how many arguments each call of a graph had."""

    def __init__(self) -> None:
        self.graphs = 0
        self.runs: list[int] = []
        self.operations: list[str] = []

    def __call__(self, graph: torch.fx.GraphModule, _inputs: Any) -> Callable[..., Any]:
        self.graphs += 1
        self.operations += [str(node.target) for node in graph.graph.nodes if node.op == "call_function"]

        def run(*arguments: Any) -> Any:
            self.runs.append(len(arguments))
            return graph.forward(*arguments)

        return run


def traced(monkeypatch: pytest.MonkeyPatch, compiler: Callable[..., Any]) -> None:
    torch._dynamo.reset()
    monkeypatch.setattr(static_forward, "CompiledModel", lambda model: CompiledModel(model, compiler))


@pytest.mark.parametrize("model_type", ARCHITECTURES)
def test_one_graph_serves_every_number_of_rows(monkeypatch: pytest.MonkeyPatch, model_type: str) -> None:
    compiler, attention, told = Counting(), PaddedAttention(), list[str]()
    traced(monkeypatch, compiler)
    model = TargetModel(tiny(model_type), CONFIG, lambda sentence, _: told.append(sentence), RecordingCapture())
    assert model._static.is_compiled, told
    cache = KvCache(model.new_store(40))
    for batch in steps(cache):
        if batch.num_tokens >= LEAST_ROWS:
            compiled_TV = model.run_static(attention.prepare(batch))[: len(batch.logit_rows_R)]
            torch.testing.assert_close(compiled_TV, model.forward(batch), rtol=1e-4, atol=1e-4)
    assert compiler.graphs == 1
    assert sum("gander.attend" in each for each in compiler.operations) == len(model.layers)


def refuse(*_arguments: object) -> object:
    raise torch._dynamo.exc.Unsupported("it prints")


def say_otherwise(graph: torch.fx.GraphModule, _inputs: Any) -> Callable[..., Any]:
    return lambda *arguments: [each * 2 for each in graph(*arguments)]


@pytest.mark.parametrize(
    ("compiler", "reason"), [(refuse, "it prints"), (say_otherwise, "logits that differ by 1 of the largest one")]
)
def test_a_model_that_cannot_be_compiled_runs_as_it_is(
    monkeypatch: pytest.MonkeyPatch, compiler: Callable[..., Any], reason: str
) -> None:
    told: list[str] = []
    traced(monkeypatch, compiler)
    model = TargetModel(tiny("llama"), CONFIG, lambda sentence, _: told.append(sentence), RecordingCapture())
    assert any(each.startswith("The model runs as it is: ") and reason in each for each in told), told
    assert not model._static.is_compiled
    batch = next(steps(KvCache(model.new_store(40))))
    static_TV = model.run_static(PaddedAttention().prepare(batch))[: len(batch.logit_rows_R)]
    torch.testing.assert_close(static_TV, model.forward(batch), rtol=1e-4, atol=1e-4)


def test_what_is_not_captured_is_not_compiled() -> None:
    told: list[str] = []
    model = TargetModel(tiny("llama"), CONFIG, lambda sentence, _: told.append(sentence))
    assert "only captured forwards are compiled" in told[-1]
    assert not model._static.is_compiled


def test_a_compiled_model_whose_layers_are_given_more_of_a_picture_reads_text_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Since a hook would have it compiled anew."""
    traced(monkeypatch, Counting())
    monkeypatch.setattr(target_model, "capture_on", lambda _: RecordingCapture())
    for kind, blindness in (
        ("qwen3_vl", "its layers are given more of a picture than embeddings, and are compiled"),
        ("llava", None),
    ):
        tiny_seeing(kind, tmp_path / kind)
        model = TargetModel.load(replace(CONFIG, model=str(tmp_path / kind)), lambda *_: None)
        assert model._static.is_compiled
        assert model.blindness == blindness


def test_a_step_that_fits_no_captured_forward_is_compiled_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = Counting()
    traced(monkeypatch, compiler)
    model = TargetModel(tiny("llama"), CONFIG, lambda *_: None, RecordingCapture())
    batch = next(each for each in steps(KvCache(model.new_store(40))) if each.num_tokens > 4)
    expected_RV, runs = model._run(batch), len(compiler.runs)
    model.device = torch.device("meta")  # as on a device: on the CPU layers are fused otherwise
    monkeypatch.setattr(model, "_new_stopwatch", HostStopwatch)
    torch.testing.assert_close(model.launch(batch).logits_RV, expected_RV, rtol=1e-4, atol=1e-4)
    assert len(compiler.runs) == runs + 1
    plain = TargetModel(tiny("llama"), replace(CONFIG, compile=False), lambda *_: None, RecordingCapture())
    assert plain.fingerprint != model.fingerprint, "whose rounding is another"
