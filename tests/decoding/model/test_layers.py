"""Layers that run as one call: the bits of the layers that they stand for, and none but those that they have."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from decoding.cache.batch import Segment, pack
from decoding.cache.block_pool import num_blocks_for
from decoding.cache.kv_cache import KvCache
from decoding.config import EngineConfig
from decoding.errors import PartRefused
from decoding.kernels.cpu.program import MOST_ROWS
from decoding.model.layers.activations import REPLACED, FusedSilu
from decoding.model.layers.cpu_layer import FusedLayer
from decoding.model.layers.mlp import FusedMlp
from decoding.model.layers.stack import Stack, stack_of
from decoding.model.replacing.replacer import Forwards, ReplacedFunctions, replace
from decoding.model.replacing.rules import LAYERS
from decoding.model.self_test import self_test_case, trial_steps
from decoding.model.target_model import TargetModel
from decoding.weights import readers
from decoding.weights.numbers.onednn_floats import onednn_packs
from decoding.weights.rounding import can_round_to_int8
from tests.decoding.weights.test_float_panels import DTYPES
from tests.models import tiny
from tests.trees import random_parents

CPU = torch.device("cpu")
TYPES = ["llama", "mistral", "qwen2", "qwen3", "mixtral", "qwen3_moe"]
WIDE = {"head_dim": 32, "num_key_value_heads": 2}  # int8 layers have at least 64 outputs


def load(model_type: str, dtype: torch.dtype, weights: str = "auto", **overrides: object) -> TargetModel:
    config = EngineConfig(max_model_len=640, threads=1, weights=weights)  # type: ignore[arg-type]
    return TargetModel.from_model(tiny(model_type, max_position_embeddings=640, **overrides).to(dtype), config)


def fused_layers(model: TargetModel) -> list[FusedLayer]:
    return [each for each in model._model.modules() if isinstance(each, FusedLayer)]


def logits_of(model: TargetModel, num_nodes: int, prefix_len: int = 37) -> torch.Tensor:
    """Of the last rows of a random tree after a prompt."""
    cache = KvCache(model.new_store(num_blocks_for(prefix_len + num_nodes)))
    rows, tokens = cache.new_rows(prefix_len + num_nodes), np.arange(640, dtype=np.int32) % model.vocab_size
    model.forward(pack([Segment(rows, tokens[:prefix_len], None, "none")], cache.store))
    cache.store.commit(rows, np.arange(prefix_len, dtype=np.int32))
    parents = random_parents(num_nodes, np.random.default_rng(num_nodes))
    return model.forward(pack([Segment(rows, tokens[100 : 100 + num_nodes], parents, num_nodes // 2 + 1)], cache.store))


def check(model: TargetModel) -> None:
    """As it is loaded, and run by transformers' own code from the embedding to the logits."""
    layers = fused_layers(model)
    assert len(layers) == len(model.layers)
    assert isinstance(model._forward.call, Stack)
    counts = (1, 2, 7, 33, 64, 300, MOST_ROWS, MOST_ROWS + 8)  # the last are not one call
    found = [logits_of(model, count) for count in counts]
    model._forward.call = model._model
    for layer in layers:
        layer.forward = layer.layer.forward  # type: ignore[method-assign]
    for count, logits in zip(counts, found, strict=True):
        assert torch.equal(logits_of(model, count), logits), count


@pytest.mark.usefixtures("num_threads")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("model_type", TYPES)
def test_a_fused_layer_gives_the_bits_of_the_layer_it_stands_for(model_type: str, dtype: torch.dtype) -> None:
    check(load(model_type, dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_where_panels_have_other_bits_no_layer_is_fused_and_rows_keep_theirs(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with bfloat16 on a processor with AMX, and on one that multiplies no pairs of them."""
    if not onednn_packs(dtype):
        pytest.skip("its panels are our own on this processor, and have no other bits")
    monkeypatch.setattr(readers, "fitting_panels", lambda *_: None)
    model = load("llama", dtype)
    assert not fused_layers(model)
    cache = KvCache(model.new_store(2 * num_blocks_for(64)))
    tokens = np.arange(40, dtype=np.int32)
    rows, others = cache.new_rows(64), cache.new_rows(64)
    whole = model.forward(pack([Segment(rows, tokens, None, "all")], cache.store))
    for start, end in ((0, 1), (1, 8), (8, 10), (10, 40)):
        part = model.forward(pack([Segment(others, tokens[start:end], None, "all")], cache.store))
        assert torch.equal(part, whole[start:end]), (start, end)
        cache.store.commit(others, np.arange(end - start, dtype=np.int32))


@pytest.mark.skipif(not can_round_to_int8(CPU, torch.float32), reason="this processor has no VNNI")
@pytest.mark.parametrize("dtype", DTYPES)
def test_one_of_int8_weights_does_too(dtype: torch.dtype) -> None:
    check(load("qwen3", dtype, "int8", **WIDE))


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_mixture_of_int4_weights_does_too(dtype: torch.dtype) -> None:
    check(load("qwen3_moe", dtype, "int4", moe_intermediate_size=96, num_experts=8, **WIDE))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("is_tied", [False, True])
def test_one_of_int4_weights_does_too(dtype: torch.dtype, is_tied: bool) -> None:
    check(load("qwen3", dtype, "int4", tie_word_embeddings=is_tied, **WIDE))


@pytest.mark.parametrize("weights", ["auto", "int4"])
@pytest.mark.parametrize(("model_type", "num_fused"), [("lfm2", 1), ("qwen3_5_text", 0)])
def test_beside_layers_that_carry_a_state_mlps_run_in_one_call(model_type: str, num_fused: int, weights: str) -> None:
    model = load(model_type, torch.float32, weights, **WIDE)
    layers, mlps = fused_layers(model), [each for each in model._model.modules() if isinstance(each, FusedMlp)]
    assert (len(layers), len(mlps)) == (num_fused, 3 - num_fused)
    counts = (1, 2, 7, 33, 64, MOST_ROWS + 8)
    found = [logits_of(model, count) for count in counts]
    for parent in list(model._model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, FusedLayer | FusedMlp):
                setattr(parent, name, child.layer)
    assert not fused_layers(model)
    for count, logits in zip(counts, found, strict=True):
        assert torch.equal(logits_of(model, count), logits), count


def test_layers_that_compute_something_else_stay_as_they_are() -> None:
    model = load("llama", torch.float32)
    layers = nn.ModuleList([each.layer for each in fused_layers(model)])
    model._model.model.layers = layers
    model._forward.call = model._model
    mlp, attention = type(layers[0].mlp), type(layers[1].self_attn)
    layers[0].mlp.__class__ = type("Scaled", (mlp,), {"forward": lambda self, rows: 1.01 * mlp.forward(self, rows)})
    layers[1].self_attn.__class__ = type(
        "Doubled", (attention,), {"forward": lambda self, **named: (2 * attention.forward(self, **named)[0], None)}
    )
    expected = logits_of(model, 5)
    trials = trial_steps(model, self_test_case(model.vocab_size))
    report = replace(model._model, LAYERS.cpu(model._seam), Forwards(model._run, trials))
    assert str(report) == (
        "1 of 3 layers fused (others are not: they give other bits than the model's own code); "
        "1 of 2 MLPs fused (others are not: they give other bits than the model's own code)"
    )
    assert torch.equal(logits_of(model, 5), expected)
    with pytest.raises(PartRefused, match="not all of its layers are fused"):
        stack_of(model._model, [])
    assert not fused_layers(load("gemma2", torch.float32))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("width", [64, 171])
def test_silu_is_torchs_and_a_row_has_the_same_bits_in_any_company(width: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    rows = (torch.randn(300, width) * 8).to(dtype)
    rows[7, :4] = torch.tensor([0.0, -200.0, 200.0, float("nan")])
    whole = FusedSilu(dtype)(rows)
    tolerance = 1e-6 if dtype == torch.float32 else 8e-3
    torch.testing.assert_close(whole, functional.silu(rows), rtol=tolerance, atol=tolerance, equal_nan=True)
    with ReplacedFunctions(REPLACED):
        torch.testing.assert_close(functional.silu(rows), whole, rtol=0, atol=0, equal_nan=True)
    for start, count in ((0, 1), (7, 1), (3, 64), (299, 1)):
        torch.testing.assert_close(
            FusedSilu(dtype)(rows[start : start + count]), whole[start : start + count], rtol=0, atol=0, equal_nan=True
        )
