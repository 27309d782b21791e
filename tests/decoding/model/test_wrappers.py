"""Of a model that sees as well its text model is loaded, from the same files, and says what the whole one says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForImageTextToText
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from decoding.config import EngineConfig
from decoding.errors import ConfigError
from decoding.model.blueprint import read_config
from decoding.model.loading import load_model
from decoding.model.target_model import TargetModel
from decoding.model.weights import load_weights

ORIGIN: dict[str, Any] = {"revision": None, "trust_remote_code": False}
TEXT: dict[str, Any] = {
    "vocab_size": 199,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
VISION: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_heads": 2,
    "depth": 1,
    "image_size": 28,
    "patch_size": 14,
    "out_hidden_size": 64,
}
GEMMA = {"sliding_window": 8, "query_pre_attn_scalar": 16}
LINEAR = {
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
SECTIONED = {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]}}
# By type: what its text model needs beside TEXT, and the class of it.
WRAPPERS: dict[str, tuple[dict[str, Any], str]] = {
    "gemma3": (GEMMA, "Gemma3ForCausalLM"),
    "gemma4": (
        GEMMA
        | {
            "global_head_dim": 16,
            "hidden_size_per_layer_input": 8,
            "vocab_size_per_layer_input": 199,
            "num_kv_shared_layers": 0,
        },
        "Gemma4ForCausalLM",
    ),
    "qwen3_5": (LINEAR, "Qwen3_5ForCausalLM"),
    "qwen3_5_moe": (LINEAR | EXPERTS | {"shared_expert_intermediate_size": 32}, "Qwen3_5MoeForCausalLM"),
    "mistral3": ({}, "MistralForCausalLM"),
    "qwen2_vl": (SECTIONED, "Qwen2ForCausalLM"),
    "qwen2_5_vl": (SECTIONED, "Qwen2ForCausalLM"),
    "qwen3_vl": (SECTIONED, "Qwen3ForCausalLM"),
    "llama4": (
        {"num_local_experts": 4, "attention_chunk_size": 8, "intermediate_size_mlp": 96},
        "Llama4ForCausalLM",
    ),
}


def wrapper(model_type: str) -> Any:
    config = CONFIG_MAPPING[model_type](text_config=TEXT | WRAPPERS[model_type][0], vision_config=dict(VISION))
    torch.manual_seed(0)
    return AutoModelForImageTextToText.from_config(config).eval()


@pytest.mark.parametrize("model_type", WRAPPERS)
def test_the_text_model_says_what_the_whole_one_says(model_type: str, tmp_path: Path) -> None:
    whole = wrapper(model_type)
    whole.save_pretrained(tmp_path)
    config = read_config(str(tmp_path), ORIGIN)
    text = load_weights(str(tmp_path), config, torch.float32, ORIGIN, torch.device("cpu"))
    assert type(text).__name__ == WRAPPERS[model_type][1]
    ids = torch.arange(5, 15)[None]
    with torch.inference_mode():
        expected, found = (model(input_ids=ids, use_cache=False).logits for model in (whole, text))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("model_type", ["glm5_next", "t5"])
def test_a_type_without_a_causal_language_model_is_refused_by_its_name(model_type: str, tmp_path: Path) -> None:
    CONFIG_MAPPING[model_type]().save_pretrained(tmp_path)
    sentence = f"transformers has no causal language model of type '{model_type}', nor does it wrap one"
    with pytest.raises(ConfigError, match=sentence):
        TargetModel.load(EngineConfig(model=str(tmp_path), threads=1, device="cpu"), lambda *_: None)


def test_a_wrapper_is_served_by_its_text_model(tmp_path: Path) -> None:
    wrapper("qwen3_5").save_pretrained(tmp_path)
    model = TargetModel.load(EngineConfig(model=str(tmp_path), threads=1, device="cpu"), lambda *_: None)
    assert (model.vocab_size, model.max_model_len) == (199, 512)
    assert model.state_bytes > 0
    assert model.eos_token_ids == frozenset({2})


def is_packed(name: str) -> bool:
    return "language_model" in name and name.endswith("_proj.weight")


def test_a_wrapper_of_quantised_weights_is_served_by_its_text_model(tmp_path: Path) -> None:
    wrapper("gemma3").save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    steps = {f"{name}_scale": tensor.abs().max() / 448 for name, tensor in tensors.items() if is_packed(name)}
    for name in [*filter(is_packed, tensors)]:
        tensors[name] = (tensors[name] / steps[f"{name}_scale"]).to(torch.float8_e4m3fn)
    save_file(tensors | steps, tmp_path / "model.safetensors", {"format": "pt"})
    config = json.loads((tmp_path / "config.json").read_text()) | {"quantization_config": {"quant_method": "fp8"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    options = EngineConfig(model=str(tmp_path), device="cpu", dtype="float32", weights="auto")
    model, packed = load_model(str(tmp_path), options)
    assert packed.name == "fp8"
    assert type(model).__name__ == "Gemma3ForCausalLM"
    name = next(each for each in tensors if each.endswith("layers.1.input_layernorm.weight") and "language" in each)
    torch.testing.assert_close(model.get_parameter("model.layers.1.input_layernorm.weight"), tensors[name])
