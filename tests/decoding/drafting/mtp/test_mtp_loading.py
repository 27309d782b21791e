"""A checkpoint's MTP head is found and loaded, or what is wrong with it is said by name."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from decoding.config import EngineConfig
from decoding.drafting.head_loading import load_head_model
from decoding.drafting.mtp.checkpoint import load_mtp
from decoding.errors import ConfigError
from decoding.model.device.runner import silent
from decoding.model.target_model import TargetModel
from tests.decoding.model.files.test_quantized_checkpoint import FORMATS
from tests.models import tiny
from tests.mtp import FAMILIES, Mtp, mtp_of
from tests.pairs import CONFIG

FC, NORM = "model.layers.3.eh_proj.weight", "mtp.norm.weight"


@cache
def pair(model_type: str) -> tuple[Mtp, TargetModel]:
    mtp = mtp_of(model_type)
    return mtp, TargetModel.from_model(mtp_of(model_type).model, CONFIG)


def config_of(folder: Path, draft_model: str = "mtp") -> EngineConfig:
    return replace(CONFIG, model=str(folder), draft_model=draft_model, device="cpu", dtype="float32")


def refusal(model_type: str, folder: Path, **changes: torch.Tensor | None) -> str:
    """What is said of a checkpoint where its head is asked for. Left to itself, the model is served without."""
    mtp, target = pair(model_type)
    mtp.write(folder, **changes)
    assert load_head_model(config_of(folder, "auto"), target, silent) is None
    with pytest.raises(ConfigError) as raised:
        load_head_model(config_of(folder), target, silent)
    return str(raised.value)


@pytest.mark.parametrize("model_type", FAMILIES)
def test_every_tensor_is_loaded_and_the_targets_are_shared(tmp_path: Path, model_type: str) -> None:
    mtp, target = pair(model_type)
    head = load_mtp(config_of(mtp.write(tmp_path)), target)
    assert head is not None
    loaded, module = head.state_dict(), mtp.module.model.state_dict()
    for name, tensor in module.items():
        assert name == "embed_tokens.weight" or torch.equal(loaded[name], tensor), name
    turned = {"eh_proj": mtp.joining["eh_proj"].roll(64, dims=1)} if mtp.is_mimo else {}
    for own, theirs in (("fc", "eh_proj"), ("pre_fc_norm_embedding", "enorm"), ("pre_fc_norm_hidden", "hnorm")):
        assert torch.equal(loaded[f"{own}.weight"], (mtp.joining | turned)[theirs])
    assert head.embed_tokens is target.shared.embedding
    assert head.lm_head is target.shared.output
    model = load_head_model(config_of(tmp_path, "auto"), target, silent)
    assert model is not None
    own = sum(tensor.numel() for name, tensor in module.items() if name != "embed_tokens.weight")
    own += sum(tensor.numel() for tensor in mtp.joining.values())
    assert model.num_parameters <= own  # buffers are no parameters
    assert 0 < model.num_bytes <= 4 * own + sum(each.nbytes for each in head.buffers())


@pytest.mark.skipif(torch.cuda.is_available(), reason="kernels are interpreted where there is no GPU")
def test_its_experts_run_together_where_tritons_kernels_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton", reason="Triton is not installed: its kernels are not tested")
    from decoding.model.experts.device_experts import GroupedExperts

    mtp, target = pair("glm4_moe")
    monkeypatch.setattr(target, "attention", "triton")
    head = load_mtp(config_of(mtp.write(tmp_path)), target)
    assert head is not None
    assert any(isinstance(each, GroupedExperts) for each in head.modules())


def test_a_second_module_and_a_wrapped_models_names_are_no_hindrance(tmp_path: Path) -> None:
    mtp, target = pair("glm4_moe")
    second = {name.replace("layers.3.", "layers.4."): tensor for name, tensor in mtp.tensors().items()}
    head = load_mtp(config_of(mtp.write(tmp_path, **second)), target)
    assert head is not None
    assert torch.equal(head.fc.weight, mtp.joining["eh_proj"])
    wrapped = {name.replace("model.", "model.language_model."): tensor for name, tensor in mtp.tensors().items()}
    left_out = dict.fromkeys(mtp.tensors())
    head = load_mtp(config_of(mtp.write(tmp_path, **wrapped, **left_out)), target)
    assert head is not None
    assert torch.equal(head.fc.weight, mtp.joining["eh_proj"])


def test_a_checkpoint_without_mtp_tensors_has_no_head(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    said = refusal("glm4_moe", tmp_path, **dict.fromkeys(pair("glm4_moe")[0].tensors()))
    assert said.startswith("draft_model is 'mtp', and the checkpoint of")
    assert "has no MTP tensors" in said
    assert not caplog.records


def test_a_missing_tensor_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert "its MTP head has no tensor eh_proj.weight" in refusal("glm4_moe", tmp_path, **{FC: None})
    assert "drafts without the MTP head of its checkpoint: its MTP head has no tensor eh_proj.weight" in caplog.text
    said = refusal("qwen3_5_text", tmp_path, **{"mtp.layers.0.self_attn.q_proj.weight": None})
    assert "its MTP head has no tensor layers.0.self_attn.q_proj.weight" in said
    assert "its MTP head has no tensor norm.weight" in refusal("qwen3_5_text", tmp_path, **{NORM: None})


def test_an_expert_that_is_missing_or_of_another_shape_is_named(tmp_path: Path) -> None:
    for number in (1, 3):
        said = refusal("glm4_moe", tmp_path, **{f"model.layers.3.mlp.experts.{number}.up_proj.weight": None})
        assert f"its MTP head has no tensor mlp.experts.{number}.up_proj.weight" in said
    said = refusal("glm4_moe", tmp_path, **{"model.layers.3.mlp.experts.2.down_proj.weight": torch.zeros(3, 3)})
    assert "mlp.experts.2.down_proj.weight of its MTP head is [3, 3] instead of [64, 32]" in said
    last = {f"model.layers.3.mlp.experts.3.{part}_proj.weight": None for part in ("gate", "up", "down")}
    assert "mlp.experts.down_proj of its MTP head is [3, 64, 32] instead of [4, 64, 32]" in refusal(
        "glm4_moe", tmp_path, **last
    )


def test_a_tensor_of_another_shape_is_named(tmp_path: Path) -> None:
    for name, words in (
        (FC, "eh_proj.weight of its MTP head is [5, 5] instead of [64, 128]"),
        (
            "model.layers.3.self_attn.k_proj.weight",
            "self_attn.k_proj.weight of its MTP head is [5, 5] instead of [32, 64]",
        ),
    ):
        assert words in refusal("glm4_moe", tmp_path, **{name: torch.zeros(5, 5)})
    assert "norm.weight of its MTP head is [3] instead of [64]" in refusal(
        "qwen3_next", tmp_path, **{NORM: torch.ones(3)}
    )


def test_a_tensor_that_is_not_known_is_named(tmp_path: Path) -> None:
    """The scale of a weight in eight bits, for one."""
    name = "model.layers.3.self_attn.k_proj.weight_scale_inv"
    said = refusal("glm4_moe", tmp_path, **{name: torch.ones(1, 1)})
    assert "its MTP head has a tensor self_attn.k_proj.weight_scale_inv, which is not known here" in said


def test_numbers_that_are_none_are_named(tmp_path: Path) -> None:
    said = refusal("glm4_moe", tmp_path, **{"model.layers.3.enorm.weight": torch.full((64,), float("nan"))})
    assert "are not all finite numbers: pre_fc_norm_embedding.weight" in said


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn, torch.bool])
def test_numbers_that_mean_something_only_with_others_are_named(tmp_path: Path, dtype: torch.dtype) -> None:
    said = refusal("glm4_moe", tmp_path, **{FC: torch.ones(64, 128).to(dtype)})
    assert f"eh_proj.weight of its MTP head holds {dtype} numbers" in said


def test_whatever_is_wrong_with_a_tensor_ends_in_a_sentence(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    tensors = pair("glm4_moe")[0].tensors()
    broken = sorted(name for name in tensors if "embed_tokens" not in name and "shared_head.head" not in name)
    for name in generator.choice(broken, 6, replace=False):
        shape = tuple(generator.integers(0, 3, generator.integers(0, 4)).tolist())
        assert refusal("glm4_moe", tmp_path, **{name: torch.ones(shape)}).startswith("draft_model is 'mtp', and")


@pytest.mark.parametrize(
    "name", ["mtp.fc.weight", "model.mtp_layers.0.input_proj.weight", "model.layers.3.eh_proj.weight"]
)
def test_a_family_that_is_not_known_is_named(tmp_path: Path, name: str) -> None:
    llama = Mtp(tiny("llama"), tiny("llama", num_hidden_layers=1), {})
    llama.write(tmp_path, **dict.fromkeys(llama.tensors()), **{name: torch.zeros(2, 2)})
    target = TargetModel.from_model(tiny("llama"), CONFIG)
    assert load_head_model(config_of(tmp_path, "auto"), target, silent) is None
    with pytest.raises(ConfigError) as raised:
        load_head_model(config_of(tmp_path), target, silent)
    assert f"a tensor {name}, and how a model of type 'llama' drafts with it is not known here" in str(raised.value)


def test_a_model_of_any_other_form_is_served_without_a_word(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tiny("gpt_neox").save_pretrained(tmp_path)
    target = TargetModel.from_model(tiny("gpt_neox"), CONFIG)
    assert load_head_model(config_of(tmp_path, "auto"), target, silent) is None
    assert not caplog.records


def test_two_that_draft_are_refused(tmp_path: Path) -> None:
    mtp, target = pair("glm4_moe")
    config = replace(config_of(mtp.write(tmp_path)), draft_head="gosling")
    with pytest.raises(ConfigError, match="only one of them can draft"):
        load_head_model(config, target, silent)


@pytest.mark.parametrize(
    ("model_type", "name"),
    [("deepseek_v3", "FP8 channel"), ("glm4_moe", "W4A16 32"), ("qwen3_5_text", "GPTQ 32"), ("qwen3_next", "INT8")],
)
def test_a_module_that_is_quantised_is_what_its_format_means(tmp_path: Path, model_type: str, name: str) -> None:
    mtp, target = pair(model_type)
    quantization, make, most = FORMATS[name]
    changes: dict[str, torch.Tensor | None] = {}
    meant: dict[str, torch.Tensor | None] = {}
    for key, tensor in mtp.tensors().items():
        if key.endswith("proj.weight") and tensor.shape[1] % 32 == 0:
            parts, meant[key] = make(tensor)
            changes |= {key: None} | {f"{key.removesuffix('weight')}{part}": each for part, each in parts.items()}
    (tmp_path / "plain").mkdir()
    wanted = load_mtp(config_of(mtp.write(tmp_path / "plain", **meant)), target)
    assert "its MTP head" in refusal(model_type, tmp_path, **changes), "the checkpoint says nothing of quantisation"
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"quantization_config": quantization}))
    found = load_mtp(config_of(tmp_path), target)
    assert wanted is not None
    assert found is not None
    for key, tensor in wanted.state_dict().items():
        assert (found.state_dict()[key] - tensor).abs().max() <= max(most, 1e-4) * tensor.abs().max(), key
