"""What `--weights` makes of a model's layers on any processor, and where it cannot."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest
import torch

from decoding.config import EngineConfig, Weights
from decoding.errors import ConfigError
from decoding.model.self_test import long_chain
from decoding.model.target_model import TargetModel
from decoding.weights import rounding
from decoding.weights.kinds import GROUPED_INT8
from decoding.weights.linear import held_by, matrices_in
from decoding.weights.numbers.onednn_floats import can_pack
from decoding.weights.rounding import check_rounding, rounded_kinds
from tests.models import tiny

CPU = torch.device("cpu")
ROUNDED = sorted({*get_args(Weights)} - {"auto"})
pytestmark = pytest.mark.skipif(not can_pack(CPU, torch.float32), reason="this torch packs no layers")


@pytest.mark.parametrize("weights", ROUNDED)
def test_where_it_cannot_be_one_sentence_says_so(weights: Weights) -> None:
    for device, dtype in ((CPU, torch.float16), (torch.device("meta"), torch.float32)):
        with pytest.raises(ConfigError, match=f"weights '{weights}' need the CPU, and float32"):
            check_rounding(weights, device, dtype)
        check_rounding("auto", device, dtype)
    config = EngineConfig(device="cpu", dtype="float16", weights=weights)
    with pytest.raises(ConfigError, match=f"weights '{weights}'"):
        TargetModel.load(config, lambda _sentence, _fraction: None)


@pytest.mark.parametrize("model_type", ["llama", "qwen3_moe"])
def test_int8_needs_no_int8_dot_products(model_type: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without them bytes lie in groups; the experts of a mixture, too, run together, and all of it is exact."""
    monkeypatch.setattr(rounding, "can_round_to_int8", lambda *_: False)
    config = EngineConfig(max_model_len=64, threads=1)
    fields = {"moe_intermediate_size": 64} if model_type == "qwen3_moe" else {}
    model = TargetModel.from_model(tiny(model_type, **fields), config)
    rounded = TargetModel.from_model(tiny(model_type, **fields), replace(config, weights="int8"))
    kinds = {matrix.kind.name for matrix in matrices_in(rounded._model)}
    assert GROUPED_INT8 in kinds
    assert "int8" not in kinds
    assert held_by(rounded._model.get_input_embeddings()) is not None
    assert (rounded.mixtures is not None) == (model_type == "qwen3_moe")
    assert rounded.is_exact
    assert (model.weights, rounded.weights) == ("float32", GROUPED_INT8)
    assert rounded.fingerprint != model.fingerprint
    assert rounded.num_bytes < 0.5 * model.num_bytes
    expected, found = model.forward(long_chain(model)), rounded.forward(long_chain(rounded))
    assert (found - expected).norm() < 0.1 * expected.norm()


def test_kernels_are_compiled_for_what_rounding_makes(monkeypatch: pytest.MonkeyPatch) -> None:
    def needed(weights: Weights) -> set[tuple[int, int]]:
        return {(kind.bits, kind.group) for kind in rounded_kinds(weights, CPU, torch.float32) if kind.group}

    assert needed("int4") == {(4, 32), (6, 32)}
    for has_products, kinds in ((True, set()), (False, {(8, 32)})):
        monkeypatch.setattr(rounding, "can_round_to_int8", lambda *_, has=has_products: has)
        assert needed("int8") == kinds
