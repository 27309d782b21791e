"""Ten architectures are traced as one graph for every number of rows, with attention as one opaque operation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from decoding.attention.padded import PaddedAttention
from decoding.cache.kv_cache import KvCache
from decoding.config import EngineConfig
from decoding.model import target_model
from decoding.model.device.compiling import CompiledModel
from decoding.model.seam import TRACED, set_implementation
from decoding.model.target_model import TargetModel
from tests.decoding.model.device.test_graph_runner import steps
from tests.models import tiny
from tests.recording import RecordingCapture

CONFIG = EngineConfig(attention="padded", max_model_len=128, threads=1)
ARCHITECTURES = (
    "llama",
    "qwen2",
    "qwen3",
    "mistral",
    "gpt_neox",
    "gemma2",
    "gemma3_text",
    "phi3",
    "olmo2",
    "smollm3",
)


class Counting:
    """A compiler that runs what was traced as it is; graphs: how often it was called, operations: seen in them."""

    def __init__(self) -> None:
        self.graphs = 0
        self.operations: list[str] = []

    def __call__(self, graph: torch.fx.GraphModule, _inputs: Any) -> Callable[..., Any]:
        self.graphs += 1
        self.operations += [str(node.target) for node in graph.graph.nodes if node.op == "call_function"]
        return graph.forward


@pytest.mark.parametrize("model_type", ARCHITECTURES)
def test_one_graph_serves_every_number_of_rows(model_type: str) -> None:
    torch._dynamo.reset()
    model = TargetModel.from_model(tiny(model_type), CONFIG, RecordingCapture())
    plain, compiler = model._model, Counting()
    attention, cache = PaddedAttention(), KvCache(model.new_store(40))
    compiled = CompiledModel(plain, compiler)
    for batch in steps(cache):
        if batch.num_tokens < 2:
            continue
        step = attention.prepare(batch)
        expected = model.run_static(step)
        set_implementation(plain, TRACED)
        model._static_model = compiled
        torch.testing.assert_close(model.run_static(step), expected, rtol=1e-5, atol=1e-5)
        model._static_model = plain
    assert compiler.graphs == 1
    assert sum("gander.attend" in each for each in compiler.operations) == len(model.layers)


def test_a_model_that_cannot_be_traced_runs_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    torch._dynamo.reset()
    told: list[str] = []

    def refuse(*_arguments: object) -> object:
        raise torch._dynamo.exc.Unsupported("it prints")

    monkeypatch.setattr(target_model, "CompiledModel", lambda model: CompiledModel(model, refuse))
    config = replace(CONFIG, compile=True)
    model = TargetModel(tiny("llama"), config, lambda sentence, _: told.append(sentence), RecordingCapture())
    assert [each for each in told if each.startswith("The model runs as it is: ")]
    assert model._static_model is model._model


def test_what_compiles_is_checked_and_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    torch._dynamo.reset()
    compiler = Counting()
    monkeypatch.setattr(target_model, "CompiledModel", lambda model: CompiledModel(model, compiler))
    model = TargetModel.from_model(tiny("llama"), replace(CONFIG, compile=True), RecordingCapture())
    assert compiler.graphs == 1
    assert isinstance(model._static_model, CompiledModel)
    assert model._buckets[0] == 2
