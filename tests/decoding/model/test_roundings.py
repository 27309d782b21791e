"""What `--weights` makes of a model's layers on any processor, and where it cannot."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest
import torch

from decoding.config import EngineConfig, Weights
from decoding.errors import ConfigError
from decoding.model.linear import roundings
from decoding.model.linear.grouped import GroupedEmbedding, GroupedLinear
from decoding.model.linear.int8 import Int8Linear
from decoding.model.linear.packed import can_pack
from decoding.model.linear.roundings import GROUPED_INT8, check_rounding, kinds_of
from decoding.model.self_test import long_chain
from decoding.model.target_model import TargetModel
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
    monkeypatch.setattr(roundings, "can_round_to_int8", lambda *_: False)
    config = EngineConfig(max_model_len=64, threads=1)
    fields = {"moe_intermediate_size": 64} if model_type == "qwen3_moe" else {}
    model = TargetModel.from_model(tiny(model_type, **fields), config)
    rounded = TargetModel.from_model(tiny(model_type, **fields), replace(config, weights="int8"))
    modules = [type(each) for each in rounded._model.modules()]
    assert GroupedLinear in modules
    assert GroupedEmbedding in modules
    assert Int8Linear not in modules
    assert (rounded.mixtures is not None) == (model_type == "qwen3_moe")
    assert rounded.is_exact
    assert (model.weights, rounded.weights) == ("float32", GROUPED_INT8)
    assert rounded.fingerprint != model.fingerprint
    assert rounded.num_bytes < 0.5 * model.num_bytes
    expected, found = model.forward(long_chain(model)), rounded.forward(long_chain(rounded))
    assert (found - expected).norm() < 0.1 * expected.norm()


def test_kernels_are_compiled_for_what_rounding_makes(monkeypatch: pytest.MonkeyPatch) -> None:
    assert kinds_of("auto", CPU, torch.float32) == set()
    assert kinds_of("int4", CPU, torch.float32) == {(4, 32), (6, 32)}
    for has_products, kinds in ((True, set()), (False, {(8, 32)})):
        monkeypatch.setattr(roundings, "can_round_to_int8", lambda *_, has=has_products: has)
        assert kinds_of("int8", CPU, torch.float32) == kinds
