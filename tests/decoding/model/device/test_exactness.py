"""In forwards of one shape, with attention by position, a token's logits have the same bits however it is run: Triton's
kernels interpreted, forwards replayed."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch
from torch import nn

from decoding.attention.padded import PaddedAttention
from decoding.cache.step_tensors import StepTensors
from decoding.config import EngineConfig
from decoding.core.layer import LayerSpec
from decoding.model.device import graph_runner
from decoding.model.device.exactness import Exactness, exactness
from decoding.model.device.graph_runner import FIXED_ROWS
from decoding.model.target_model import TargetModel
from tests.models import tiny
from tests.recording import RecordingCapture
from tests.row_exact import use_row_exact_dots, use_row_exact_products

pytest.importorskip("triton", reason="Triton is not installed: its kernels are not tested")

from decoding.attention.triton.triton_attention import TritonAttention
from decoding.model.device import row_exact
from decoding.model.experts.device_experts import GroupedExperts

SHAPE = {"num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1}
MOST_ROWS = 96
CONFIG = EngineConfig(attention="padded", max_model_len=128, threads=1)

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="kernels are interpreted where there is no GPU")


class WideAttention(PaddedAttention):
    """In float64, of which nothing is left of the order of keys once it is rounded: quick, unlike an interpreter."""

    def attend(
        self, layer: LayerSpec, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, step: StepTensors
    ) -> torch.Tensor:
        return super().attend(layer, query.double(), key, value, step).float()


def served(monkeypatch: pytest.MonkeyPatch, num_layers: int = 1) -> TargetModel:
    """With products of which a row's bits depend on the row alone."""
    use_row_exact_products(monkeypatch)
    monkeypatch.setattr(graph_runner, "BUCKETS", (1, 4, 16, FIXED_ROWS, MOST_ROWS))
    model = TargetModel.from_model(
        tiny("llama", **SHAPE | {"num_hidden_layers": num_layers}), CONFIG, RecordingCapture()
    )
    model._seam.backend = WideAttention()
    return model


def found_of(model: TargetModel) -> Exactness:
    store = model.new_store(64)
    return exactness(model, model.runner_over(store, 128, FIXED_ROWS), store, 512)


def test_in_one_shape_they_are_the_same_in_trees_chains_and_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    model = served(monkeypatch)
    model._seam.backend = TritonAttention(model.layers, model.dtype, model.device)
    assert found_of(model) == (FIXED_ROWS, None)


def by_place(_module: nn.Module, _inputs: object, hidden_1NE: torch.Tensor) -> torch.Tensor:
    """What a layer adds depends on where in its step a token lies."""
    return hidden_1NE + 1e-3 * torch.arange(hidden_1NE.shape[1])[None, :, None]


@pytest.mark.parametrize("layer", [0, 2])
def test_the_layer_behind_which_a_token_first_has_other_bits_is_told(
    monkeypatch: pytest.MonkeyPatch, layer: int
) -> None:
    model = served(monkeypatch, num_layers=3)
    model._model.model.layers[layer].mlp.register_forward_hook(by_place)
    rows, reason = found_of(model)
    assert rows == 0
    assert reason is not None
    told = re.fullmatch(
        r"Of a tree and its paths token by token, (\d+) of 10 tokens have other logits, by up to (\S+) of the "
        r"largest\. "
        rf"Hidden states differ first behind layer {layer} of 0 to 2, by up to (\S+) of the largest\.",
        reason,
    )
    assert told is not None, reason
    # All but the second tree's root, which is its step's first token, unless a later layer reads what lies before it.
    assert int(told[1]) == (9 if layer == 2 else 10)
    assert all(0 < float(share) < 0.1 for share in told.groups()[1:])


def test_a_difference_of_larger_steps_alone_is_told_with_their_size(monkeypatch: pytest.MonkeyPatch) -> None:
    model = served(monkeypatch)
    model.is_row_exact = True

    def by_size(_module: nn.Module, _inputs: object, hidden_1NE: torch.Tensor) -> torch.Tensor:
        return hidden_1NE * (1 + 1e-4 * hidden_1NE.shape[1])

    model._model.model.norm.register_forward_hook(by_size)
    store = model.new_store(64)
    rows, reason = exactness(model, model.runner_over(store, MOST_ROWS, MOST_ROWS), store, MOST_ROWS)
    assert rows == FIXED_ROWS
    assert reason is not None
    assert reason.startswith(f"Of a prompt of {MOST_ROWS} tokens and the same in pieces of 1, 17, 2, 3, 64, 9, ")
    assert reason.endswith("Hidden states are the same behind all layers: the last norm or the head differs.")


def test_a_layer_that_cannot_be_watched_is_not_named(monkeypatch: pytest.MonkeyPatch) -> None:
    model = served(monkeypatch)
    model._model.model.layers[0].mlp.register_forward_hook(by_place)
    model.ranks = (1,)
    reason = found_of(model).reason
    assert reason is not None
    assert reason.endswith("Behind which layer cannot be told: the model is divided among processes.")


def test_what_does_not_hold_is_not_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here by attention that adds up keys in the order in which they lie."""
    model = TargetModel.from_model(tiny("llama", **SHAPE), CONFIG, RecordingCapture())
    store = model.new_store(64)
    found = exactness(model, model, store, 512)
    assert found.rows == 0
    assert "operation by operation" in str(found.reason)
    monkeypatch.setattr(graph_runner, "BUCKETS", (FIXED_ROWS,))
    assert exactness(model, model.runner_over(store, 128, FIXED_ROWS), store, 512).rows == 0


def exact_model(monkeypatch: pytest.MonkeyPatch, model_type: str = "llama") -> TargetModel:
    use_row_exact_dots(monkeypatch)
    monkeypatch.setattr(graph_runner, "BUCKETS", (FIXED_ROWS, MOST_ROWS))
    config = replace(CONFIG, attention="triton", exact=True)
    shape = SHAPE | {"num_hidden_layers": 1, "hidden_size": 32, "intermediate_size": 32, "vocab_size": 64}
    shape |= {"moe_intermediate_size": 16} if model_type == "qwen3_moe" else {}
    return TargetModel.from_model(tiny(model_type, **shape), config, RecordingCapture())


@pytest.mark.slow
@pytest.mark.parametrize("model_type", ["llama", "qwen3_moe"])
def test_by_kernels_of_our_own_prompts_have_the_bits_of_single_tokens(
    monkeypatch: pytest.MonkeyPatch, model_type: str
) -> None:
    model = exact_model(monkeypatch, model_type)
    is_mixture = any(isinstance(each, GroupedExperts) for each in model._model.modules())
    assert is_mixture == (model_type == "qwen3_moe")
    store = model.new_store(64)
    assert exactness(model, model.runner_over(store, MOST_ROWS, MOST_ROWS), store, MOST_ROWS).rows == MOST_ROWS


@pytest.mark.slow
def test_what_rounds_by_the_number_of_rows_is_exact_in_one_shape_only(monkeypatch: pytest.MonkeyPatch) -> None:
    model, mean = exact_model(monkeypatch), row_exact.mean_of
    monkeypatch.setattr(row_exact, "mean_of", lambda rows: mean(rows) * (1 + rows.shape[-2] / 1e6))
    store = model.new_store(64)
    assert exactness(model, model.runner_over(store, MOST_ROWS, MOST_ROWS), store, MOST_ROWS).rows == FIXED_ROWS
