"""What is loaded, where and in which numbers is settled before anything is loaded, or refused with a sentence."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest
import torch
from transformers import PreTrainedConfig

from decoding.config import EngineConfig, KvDtype
from decoding.errors import ConfigError
from decoding.kernels.cpu.attention.formats import FORMATS
from decoding.model import checkpoint
from decoding.model.checkpoint import max_model_len, resolve
from decoding.model.target_model import TargetModel
from tests.models import tiny

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
TYPES: tuple[KvDtype, ...] = get_args(KvDtype)[1:]  # but auto


def test_auto_is_float32_and_exact_on_a_cpu() -> None:
    config, _ = resolve(EngineConfig(device="cpu"))
    assert (config.device, config.dtype, config.attention) == ("cpu", "float32", "exact")


def test_a_device_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match="'toaster' is not a device"):
        resolve(EngineConfig(device="toaster"))


def test_a_device_that_is_not_there_is_refused_before_a_worker_dies_of_it() -> None:
    missing = f"cuda:{torch.cuda.device_count()}"
    with pytest.raises(ConfigError, match=f"'{missing}' is not there"):
        resolve(EngineConfig(device=missing))


def test_each_of_several_workers_has_a_gpu_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    options = {"dtype": "bfloat16", "attention": "sdpa"}
    for device in ("auto", "cuda", "cuda:1"):
        config, _ = resolve(EngineConfig(device=device, workers=2, place=1, **options))  # type: ignore[arg-type]
        assert config.device == "cuda:1"
    assert resolve(EngineConfig(device="cpu", workers=2, place=1))[0].device == "cpu"
    with pytest.raises(ConfigError, match="'cuda:1' is one GPU and workers is 2"):
        resolve(EngineConfig(device="cuda:1", workers=2))
    with pytest.raises(ConfigError, match="workers is 3, but torch sees 2 CUDA devices"):
        resolve(EngineConfig(workers=3))


def test_a_divided_model_has_the_gpus_that_follow_those_of_the_workers_before_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    options = {"dtype": "bfloat16", "attention": "sdpa", "tensor_parallel_size": 2}
    for place in range(2):
        config, _ = resolve(EngineConfig(workers=2, place=place, **options))  # type: ignore[arg-type]
        assert config.device == f"cuda:{2 * place}"
    assert resolve(EngineConfig(**options))[0].device == "cuda:0"  # type: ignore[arg-type]
    with pytest.raises(
        ConfigError, match="workers is 3 and tensor_parallel_size 2, but torch sees 4 CUDA devices, and"
    ):
        resolve(EngineConfig(workers=3, **options))  # type: ignore[arg-type]


def test_a_gpu_gets_tritons_kernels_where_triton_can_run(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(checkpoint, "find_spec", lambda _name: "found")
    monkeypatch.setattr(checkpoint, "why_no_triton", lambda: None)
    assert checkpoint.resolve_attention("auto", "cuda", "bfloat16") == "triton"
    assert checkpoint.resolve_attention("sdpa", "cuda", "bfloat16") == "sdpa"
    monkeypatch.setattr(checkpoint, "_is_interpreted", lambda: False)
    with pytest.raises(ConfigError, match="needs a GPU"):
        checkpoint.resolve_attention("triton", "cpu", "float32")
    monkeypatch.setattr(checkpoint, "why_no_triton", lambda: "Triton needs a C compiler")
    assert checkpoint.resolve_attention("auto", "cuda", "bfloat16") == "sdpa"
    assert "Triton needs a C compiler" in caplog.text
    with pytest.raises(ConfigError, match="attention 'triton' cannot run: Triton needs a C compiler"):
        checkpoint.resolve_attention("triton", "cuda", "bfloat16")
    monkeypatch.setattr(checkpoint, "find_spec", lambda _name: None)
    with pytest.raises(ConfigError, match="not installed"):
        checkpoint.resolve_attention("triton", "cuda", "bfloat16")


def test_the_type_of_keys_and_values_is_the_models_or_on_a_cpu_another() -> None:
    assert checkpoint.resolve_kv_dtype("auto", CUDA, "bfloat16", "triton") == "bfloat16"
    assert checkpoint.resolve_kv_dtype("float32", CPU, "float32", "exact") == "float32"
    for kv_dtype in TYPES:
        for attention in ("exact", "sdpa", "reference", "padded"):
            assert checkpoint.resolve_kv_dtype(kv_dtype, CPU, "float32", attention) == kv_dtype
    for device, attention in ((CUDA, "sdpa"), (CPU, "triton")):
        with pytest.raises(ConfigError, match="kv_dtype 'int8' needs a CPU, and no attention 'triton'"):
            checkpoint.resolve_kv_dtype("int8", device, "float32", attention)


def test_a_gpu_that_converts_fp8_may_store_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for found, is_had in (((8, 0), False), ((8, 6), False), ((8, 9), True), ((9, 0), True), ((12, 0), True)):
        monkeypatch.setattr(checkpoint, "capability", lambda _device, found=found: found)
        if is_had:
            assert checkpoint.resolve_kv_dtype("fp8", CUDA, "bfloat16", "triton") == "fp8"
            continue
        with pytest.raises(
            ConfigError, match=rf"'fp8' needs a GPU of compute capability 8.9 or more, .* is 8.{found[1]}"
        ):
            checkpoint.resolve_kv_dtype("fp8", CUDA, "bfloat16", "triton")
    with pytest.raises(ConfigError, match="or are 'fp8' where attention is 'triton'"):
        checkpoint.resolve_kv_dtype("fp8", CUDA, "bfloat16", "sdpa")
    assert checkpoint.resolve_kv_dtype("fp8", CPU, "float32", "triton") == "fp8", "interpreted"


def test_replies_over_another_type_of_keys_have_another_fingerprint() -> None:
    config = EngineConfig(device="cpu", threads=1, max_model_len=64)
    models = {kv_dtype: TargetModel.from_model(tiny("llama"), replace(config, kv_dtype=kv_dtype)) for kv_dtype in TYPES}
    assert len({model.fingerprint for model in models.values()}) == len(TYPES)
    assert models["float32"].bytes_per_slot == 2 * models["bfloat16"].bytes_per_slot == 4 * models["fp8"].bytes_per_slot
    assert tuple(TYPES) == FORMATS


def test_exact_on_a_gpu_needs_tritons_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "_type_of", lambda _device: "cuda")
    monkeypatch.setattr(checkpoint, "find_spec", lambda _name: "found")
    monkeypatch.setattr(checkpoint, "why_no_triton", lambda: None)
    assert resolve(EngineConfig(device="cuda", dtype="bfloat16", exact=True))[0].attention == "triton"
    with pytest.raises(ConfigError, match="exact needs Triton's kernels on a GPU, and attention is 'sdpa'"):
        resolve(EngineConfig(device="cuda", dtype="bfloat16", attention="sdpa", exact=True))
    monkeypatch.undo()
    assert resolve(EngineConfig(device="cpu", exact=True))[0].attention == "exact"


@pytest.mark.parametrize("fields", [{"index_topk": 64}, {"index_topk_blocks": 4, "index_block_size": 16}])
def test_sparse_attention_is_served_as_far_as_it_is_dense(
    fields: dict[str, int], caplog: pytest.LogCaptureFixture
) -> None:
    config = PreTrainedConfig(max_position_embeddings=512, **fields)
    assert max_model_len(config, None) == 64
    assert "more than 64 tokens are not served" in caplog.text
    assert max_model_len(config, 48) == 48
    with pytest.raises(ConfigError, match="max_model_len 65 is more than the 64 keys that its layers choose"):
        max_model_len(config, 65)
    assert max_model_len(PreTrainedConfig(max_position_embeddings=32, **fields), None) == 32
