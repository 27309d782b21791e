"""A forward on a device without numbers: whatever asks for one, or mixes devices, raises."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from decoding.attention.padded import PaddedAttention
from decoding.cache.step_tensors import StepBuffers, StepRoom, StepTensors
from decoding.config import EngineConfig
from decoding.core.layer import LayerSpec
from decoding.model.target_model import TargetModel
from tests.models import tiny
from tests.recording import RecordingCapture

META = torch.device("meta")  # shapes and dtypes alone: what a device has while the host runs ahead of it
CONFIG = EngineConfig(attention="padded", max_model_len=64, threads=1)


def staged(model_type: str) -> tuple[TargetModel, StepTensors]:
    """A model that has moved away, and a step beside it."""
    model = TargetModel.from_model(tiny(model_type), CONFIG, RecordingCapture())
    model.device = META
    model._model.to(META)
    room = StepRoom(rows=8, logits=8, tree_rows=8, blocks=8, keys=64)
    return model, StepBuffers(model.new_store(8), room).view(8)


@pytest.mark.parametrize("model_type", ["llama", "qwen3", "gemma3_text", "gpt_neox", "phi3"])
def test_a_launch_asks_the_device_for_nothing(model_type: str) -> None:
    model, step = staged(model_type)
    logits_TV = model.run_static(step)
    assert (logits_TV.device.type, len(logits_TV)) == ("meta", 8)


QUESTIONS: dict[str, Callable[[torch.Tensor], object]] = {
    "a number": lambda lengths: lengths.sum().item(),
    "a list": lambda lengths: lengths.tolist(),
    "a copy": lambda lengths: lengths.cpu(),
    "a truth": lambda lengths: bool((lengths > 0).any()),
    "an operation with the host's numbers": lambda lengths: lengths + torch.arange(len(lengths)),
}


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_launch_that_does_is_caught(monkeypatch: pytest.MonkeyPatch, question: str) -> None:
    model, step = staged("llama")
    attend = PaddedAttention.attend

    def asking(
        self: PaddedAttention, layer: LayerSpec, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, step: StepTensors
    ) -> torch.Tensor:
        QUESTIONS[question](step.lengths_B)
        return attend(self, layer, q, k, v, step)

    monkeypatch.setattr(PaddedAttention, "attend", asking)
    with pytest.raises((RuntimeError, NotImplementedError)):
        model.run_static(step)
