"""Shares: together they are the model, each is read alone, and what cannot be divided is refused by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from decoding.config import EngineConfig
from decoding.errors import ConfigError
from decoding.model.blueprint import read_config
from decoding.model.files.quantized_checkpoint import Shards
from decoding.model.files.skeleton import empty_model
from decoding.model.loading import shards_of
from decoding.model.parallel.shards import (
    COLUMN_PARALLEL,
    MODEL_TYPES,
    ROW_PARALLEL,
    Share,
    check_divisible,
    divide,
)
from tests.models import tiny
from tests.seeing import tiny_seeing

SIZE = 2


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    def save(model_type: str, **options: Any) -> Path:
        folder = tmp_path_factory.mktemp(model_type)
        tiny(model_type, **options).save_pretrained(folder)
        return folder

    return save


def config_of(folder: Path, **options: Any) -> EngineConfig:
    return EngineConfig(model=str(folder), device="cpu", dtype="float32", tensor_parallel_size=SIZE, **options)


def dim_of(name: str) -> int | None:
    """Along which dimension the shares of a parameter lie side by side."""
    *_, module, kind = name.split(".")
    if module == "experts":
        return 2 if kind == "down_proj" else 1
    if module in COLUMN_PARALLEL:
        return 0
    return 1 if module in ROW_PARALLEL and kind == "weight" else None


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_shares_together_are_the_model(folder_of: Callable[..., Path], model_type: str) -> None:
    folder = folder_of(model_type)
    whole = dict(tiny(model_type).named_parameters())
    files, blueprint = Shards(shards_of(str(folder), None)), read_config(str(folder), {"trust_remote_code": False})
    shares = []
    for rank in range(SIZE):
        model = empty_model(blueprint, torch.float32)
        weights = divide(model, files, Share(rank, SIZE))
        assert {name: tuple(each.shape) for name, each in model.named_parameters()} == {
            name: each.shape for name, each in weights.items()
        }
        shares.append({name: each.dense(torch.float32) for name, each in weights.items()})
        for name, weight in weights.items():
            assert shares[-1][name].shape == weight.shape, name
    assert shares[0].keys() == whole.keys()
    num_divided = 0
    for name, expected in whole.items():
        parts, dim = [share[name] for share in shares], dim_of(name)
        if dim is None:
            assert all(torch.equal(part, expected) for part in parts), name
            continue
        num_divided += 1
        if name.endswith("gate_up_proj"):  # each share has its part of both
            parts = [torch.cat([part.chunk(2, 1)[half] for part in parts], 1) for half in range(2)]
        assert torch.equal(torch.cat(parts, dim), expected), name
    assert num_divided >= 3 * 6, "layers of attention and of what follows it"


def test_a_bias_behind_a_sum_is_added_once(folder_of: Callable[..., Path]) -> None:
    model = tiny("llama", attention_bias=True, mlp_bias=True)
    biases = {name: each for name, each in model.named_parameters() if name.endswith(("o_proj.bias", "down_proj.bias"))}
    for place, bias in enumerate(biases.values(), start=1):
        torch.nn.init.constant_(bias, place)
    folder = folder_of("llama")
    model.save_pretrained(folder)
    files, blueprint = Shards(shards_of(str(folder), None)), read_config(str(folder), {"trust_remote_code": False})
    first, second = (divide(empty_model(blueprint, torch.float32), files, Share(rank, SIZE)) for rank in range(SIZE))
    assert len(biases) == 2 * 3
    for name, bias in biases.items():
        assert torch.equal(first[name].dense(torch.float32), bias), name
        assert not second[name].dense(torch.float32).any(), name


@pytest.mark.parametrize(
    ("model_type", "options", "overrides", "reason"),
    [
        ("mistral", {}, {}, "a model of type 'mistral' is not divided: those of llama, qwen2,"),
        ("qwen3_next", {}, {}, "a model of type 'qwen3_next' is not divided"),
        ("llama", {"weights": "int8"}, {}, "rounded at load"),
        ("llama", {"compile": True}, {}, "--compile"),
        ("llama", {"trust_remote_code": True}, {}, "--trust-remote-code"),
        ("llama", {}, {"num_key_value_heads": 1}, "it does not divide the model's num_key_value_heads, 1"),
        ("llama", {}, {"intermediate_size": 97}, "it does not divide the model's intermediate_size, 97"),
        ("qwen3_moe", {}, {"moe_intermediate_size": 31}, "it does not divide the model's moe_intermediate_size, 31"),
    ],
)
def test_what_cannot_be_divided_is_refused_by_name(
    folder_of: Callable[..., Path], model_type: str, options: Any, overrides: Any, reason: str
) -> None:
    folder = folder_of(model_type, **overrides)
    with pytest.raises(ConfigError, match=r"^tensor_parallel_size is 2, and .*" + reason):
        check_divisible(config_of(folder, **options), str(folder))


def test_quantised_weights_and_files_that_do_not_fit_are_refused(folder_of: Callable[..., Path]) -> None:
    folder = folder_of("llama")
    config = config_of(folder)
    check_divisible(config, str(folder))
    path = folder / "config.json"
    own = path.read_text()
    path.write_text(own.replace("{", '{"quantization_config": {"quant_method": "gptq", "bits": 4},', 1))
    with pytest.raises(ConfigError, match=r"and quantised weights are not divided$"):
        check_divisible(config, str(folder))
    path.write_text(own.replace('"intermediate_size": 96', '"intermediate_size": 192'))
    blueprint = read_config(str(folder), {"trust_remote_code": False})
    files = Shards(shards_of(str(folder), None))
    with pytest.raises(ConfigError, match=r"do not fit its config.json: .* \(96, 64\) instead of \(192, 64\)"):
        divide(empty_model(blueprint, torch.float32), files, Share(0, SIZE))
    gguf = folder / "model.gguf"
    gguf.write_bytes(b"GGUF")
    with pytest.raises(ConfigError, match=r"a GGUF file's packed weights are not divided$"):
        check_divisible(replace(config, model=str(gguf)), str(folder))


def test_experts_in_the_files_of_a_model_that_sees_are_not_divided(tmp_path: Path) -> None:
    tiny_seeing("qwen3_vl_moe", tmp_path)
    with pytest.raises(ConfigError, match=r"^tensor_parallel_size is 2, and experts that a model that sees has in one"):
        check_divisible(config_of(tmp_path), str(tmp_path))
