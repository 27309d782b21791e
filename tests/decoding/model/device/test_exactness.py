"""In forwards of one shape, with attention by position, a token's logits have the same bits however it is run: Triton's
kernels interpreted, forwards replayed."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch

from decoding.config import EngineConfig
from decoding.model.device import graph_runner
from decoding.model.device.graph_runner import FIXED_ROWS, exact_rows
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


@pytest.fixture(autouse=True)
def _infinities_are_numbers() -> Iterator[None]:
    with np.errstate(all="ignore"), warnings.catch_warnings():  # the interpreter's arithmetic is numpy's
        warnings.simplefilter("ignore", RuntimeWarning)
        yield


def rows_of(fixed_rows: int, monkeypatch: pytest.MonkeyPatch) -> int:
    use_row_exact_products(monkeypatch)
    monkeypatch.setattr(graph_runner, "BUCKETS", (1, 4, 16, FIXED_ROWS))
    model = TargetModel.from_model(tiny("llama", **SHAPE | {"num_hidden_layers": 1}), CONFIG, RecordingCapture())
    model.fixed_rows = fixed_rows
    model._seam.backend = TritonAttention(model.layers, model.dtype, model.device)
    store = model.new_store(64)
    return exact_rows(model, model.runner_over(store, 128, FIXED_ROWS), store, 512)


def test_in_one_shape_they_are_the_same_in_trees_chains_and_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    assert rows_of(FIXED_ROWS, monkeypatch) == FIXED_ROWS


def test_what_does_not_hold_is_not_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here by attention that adds up keys in the order in which they lie."""
    model = TargetModel.from_model(tiny("llama", **SHAPE), CONFIG, RecordingCapture())
    store = model.new_store(64)
    assert exact_rows(model, model, store, 512) == 0, "which runs operation by operation"
    monkeypatch.setattr(graph_runner, "BUCKETS", (FIXED_ROWS,))
    assert exact_rows(model, model.runner_over(store, 128, FIXED_ROWS), store, 512) == 0


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
    assert exact_rows(model, model.runner_over(store, MOST_ROWS, MOST_ROWS), store, MOST_ROWS) == MOST_ROWS


@pytest.mark.slow
def test_what_rounds_by_the_number_of_rows_is_exact_in_one_shape_only(monkeypatch: pytest.MonkeyPatch) -> None:
    model, mean = exact_model(monkeypatch), row_exact.mean_of
    monkeypatch.setattr(row_exact, "mean_of", lambda rows: mean(rows) * (1 + rows.shape[-2] / 1e6))
    store = model.new_store(64)
    assert exact_rows(model, model.runner_over(store, MOST_ROWS, MOST_ROWS), store, MOST_ROWS) == FIXED_ROWS
