"""A GGUF file's model has the logits of the transformers model with the same weights."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from decoding.errors import ConfigError
from decoding.model.files.gguf_config import config_of
from decoding.model.files.gguf_file import read_gguf
from decoding.model.files.gguf_metadata import Metadata, rope_of
from decoding.model.files.gguf_place import small_files
from decoding.model.loading import load_gguf
from decoding.weights.matrix import Target
from tests.gguf_files import VOCAB_SIZE, write_gguf
from tests.models import tiny

DENSE = Target(torch.float32, torch.device("cpu"), is_packed=False)
PACKED = Target(torch.float32, torch.device("cpu"), is_packed=True)
IDS = torch.tensor([[5, 9, 4, 120, 77, 3, 44, 45, 46, 130, 8, 9]])
LAYERS = ["linear_attention", "full_attention", "linear_attention"]  # of the tiny Qwen3.5
GRANITE = {"attention_multiplier": 0.3, "embedding_multiplier": 2.0, "residual_multiplier": 0.5, "logits_scaling": 1.5}
FALCON = {
    "attention_in_multiplier": 0.9,
    "attention_out_multiplier": 0.8,
    "key_multiplier": 0.7,
    "ssm_in_multiplier": 0.6,
    "ssm_out_multiplier": 1.2,
    "ssm_multipliers": [0.9, 1.1, 1.2, 0.8, 0.7],
    "mlp_multipliers": [1.3, 0.9],
    "embedding_multiplier": 1.4,
    "lm_head_multiplier": 0.6,
}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama tied": ("llama", {"tie_word_embeddings": True}),
    "mistral": ("mistral", {"sliding_window": None}),
    "mixtral": ("mixtral", {"sliding_window": None}),
    "qwen2": ("qwen2", {}),
    "qwen3": ("qwen3", {}),
    "qwen2moe": ("qwen2_moe", {}),
    "qwen3moe": ("qwen3_moe", {"norm_topk_prob": True}),
    "gemma2": ("gemma2", {"tie_word_embeddings": True, "final_logit_softcapping": 20.0}),
    "gemma3": ("gemma3_text", {"layer_types": None, "num_hidden_layers": 7, "tie_word_embeddings": True}),
    "phi3": ("phi3", {}),
    "gpt-oss": ("gpt_oss", {}),
    "smollm3": ("smollm3", {"no_rope_layer_interval": 4, "num_hidden_layers": 5}),
    "olmo2": ("olmo2", {}),
    "lfm2": ("lfm2", {}),
    "lfm2moe": ("lfm2_moe", {"tie_word_embeddings": True}),
    "qwen3next": ("qwen3_next", {}),
    "qwen35": ("qwen3_5_text", {}),
    "qwen35moe": ("qwen3_5_moe_text", {}),
    "granitehybrid": ("granitemoehybrid", GRANITE),
    "granitehybrid dense": ("granitemoehybrid", GRANITE | {"num_local_experts": 0, "position_embedding_type": "rope"}),
    "falcon-h1": ("falcon_h1", FALCON),
    "falcon-h1 normed": ("falcon_h1", FALCON | {"mamba_rms_norm": True, "mamba_norm_before_gate": False}),
    "nemotron_h": ("nemotron_h", {}),
}


def logits_of(model: PreTrainedModel) -> torch.Tensor:
    with torch.inference_mode():
        return model.eval()(input_ids=IDS).logits


def loaded(path: Path, target: Target = DENSE) -> PreTrainedModel:
    return load_gguf(read_gguf([path]), str(small_files([path])), target)[0]


@pytest.mark.parametrize("name", MODELS)
def test_a_file_has_the_logits_of_the_model_it_was_written_from(name: str, tmp_path: Path) -> None:
    model_type, changes = MODELS[name]
    model = tiny(model_type, vocab_size=VOCAB_SIZE, **changes)
    path = write_gguf(tmp_path / "model.gguf", model)
    torch.testing.assert_close(logits_of(loaded(path)), logits_of(model), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_1", "Q5_0", "F16", "BF16"])
@pytest.mark.parametrize(
    "name", ["llama tied", "qwen3moe", "gpt-oss", "gemma3", "qwen35", "granitehybrid dense", "nemotron_h"]
)
def test_packed_weights_have_the_logits_of_the_same_weights_unpacked(name: str, kind: str, tmp_path: Path) -> None:
    model_type, changes = MODELS[name]
    path = write_gguf(tmp_path / "model.gguf", tiny(model_type, vocab_size=VOCAB_SIZE, **changes), kind)
    packed, dense = logits_of(loaded(path, PACKED)), logits_of(loaded(path))
    assert (packed - dense).abs().max() < 0.3 * dense.abs().max()  # activations are rounded, and experts may change


@pytest.mark.parametrize("kinds", [("Q8_0", "Q8_0"), ("Q8_0", "Q4_1"), ("F16", "Q8_0"), ("F32", "F16")])
def test_parts_are_joined_whatever_their_formats(kinds: tuple[str, str], tmp_path: Path) -> None:
    """Queries, keys and values of Qwen3-Next are in one tensor and gates in another, here in one parameter."""
    model = tiny("qwen3_next", vocab_size=VOCAB_SIZE)
    others = dict(zip(("attn_qkv.weight", "attn_gate.weight"), kinds, strict=True))
    found = loaded(write_gguf(tmp_path / "model.gguf", model, others=others))
    name = "model.layers.2.linear_attn.in_proj_qkvz.weight"
    torch.testing.assert_close(found.get_parameter(name), model.get_parameter(name), rtol=0.0, atol=0.03)


def test_the_layers_of_an_mtp_head_are_left_out(tmp_path: Path) -> None:
    model = tiny("qwen3_5_text", vocab_size=VOCAB_SIZE, num_hidden_layers=4, layer_types=[*LAYERS, "full_attention"])
    metadata = {"qwen35.nextn_predict_layers": 1}
    found = loaded(write_gguf(tmp_path / "model.gguf", model, metadata=metadata))
    shorter = tiny("qwen3_5_text", vocab_size=VOCAB_SIZE)
    shorter.load_state_dict({name: value for name, value in model.state_dict().items() if ".layers.3." not in name})
    torch.testing.assert_close(logits_of(found), logits_of(shorter), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"granitehybrid.rope.dimension_count": 8, "granitehybrid.rope.scaling.finetuned": True}, "it may be a Bamba"),
        ({"granitehybrid.ssm.inner_size": 129}, "cannot be cut into 8 heads"),
        ({"granitehybrid.ssm.inner_size": 2**30}, r"do not fit its tensors: blk\.0\.ssm_out\.weight"),
        ({"granitehybrid.ssm.time_step_rank": 128}, r"do not fit its tensors: blk\.0\.ssm_a"),
        ({"granitehybrid.ssm.state_size": 2**30}, r"do not fit its tensors: blk\.0\.ssm_conv1d\.weight"),
        ({"granitehybrid.attention.key_length": 2**30}, "its heads are 1073741824 wide"),
        ({"granitehybrid.rope.dimension_count": 2**30}, r"its rope\.dimension_count is 1073741824"),
        ({"granitehybrid.nextn_predict_layers": 3}, "fewer than all"),
    ],
)
def test_what_a_hybrid_cannot_be_is_said(changes: dict[str, Any], said: str, tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "model.gguf", tiny("granitemoehybrid", vocab_size=VOCAB_SIZE, **GRANITE))
    file = read_gguf([path])
    with pytest.raises(ConfigError, match=said):
        config_of(replace(file, metadata={**file.metadata, **changes}))


def test_a_falcon_whose_head_is_its_embedding_is_refused(tmp_path: Path) -> None:
    model = tiny("falcon_h1", vocab_size=VOCAB_SIZE, tie_word_embeddings=True)
    file = read_gguf([write_gguf(tmp_path / "model.gguf", model)])
    with pytest.raises(ConfigError, match=r"no tensor output\.weight"):
        config_of(file)


def test_an_olmo_with_a_window_is_refused(tmp_path: Path) -> None:
    file = read_gguf([write_gguf(tmp_path / "model.gguf", tiny("olmo2", vocab_size=VOCAB_SIZE))])
    with pytest.raises(ConfigError, match="it is an OLMo 3, whose window is not served"):
        config_of(replace(file, metadata={**file.metadata, "olmo2.attention.sliding_window": 4096}))


def test_a_layer_that_is_none_is_refused(tmp_path: Path) -> None:
    file = read_gguf([write_gguf(tmp_path / "model.gguf", tiny("lfm2", vocab_size=VOCAB_SIZE))])
    tensors = {name: tensor for name, tensor in file.tensors.items() if "shortconv.conv" not in name}
    with pytest.raises(
        ConfigError, match=r"its layer 0 has none of the tensors shortconv\.conv\.weight, attn_q\.weight"
    ):
        config_of(replace(file, tensors=tensors))


@pytest.mark.parametrize(("name", "key"), [("phi3", "attention.sliding_window"), ("llama", "expert_count")])
def test_a_count_of_none_is_as_if_it_were_not_given(name: str, key: str, tmp_path: Path) -> None:
    """Phi-4's files are Phi-3's with a window of 0."""
    file = read_gguf([write_gguf(tmp_path / "model.gguf", tiny(name, vocab_size=VOCAB_SIZE))])
    plain = {each: value for each, value in file.metadata.items() if each != f"{name}.{key}"}
    zero = config_of(replace(file, metadata={**plain, f"{name}.{key}": 0}))
    assert zero == config_of(replace(file, metadata=plain))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"rope.scale_linear": 4.0}, {"rope_type": "linear", "factor": 4.0}),
        ({"rope.scaling.factor": 2.0}, {"rope_type": "linear", "factor": 2.0}),
        ({"rope.scaling.type": "none", "rope.scaling.factor": 2.0}, {"rope_type": "default"}),
        (
            {"rope.scaling.type": "yarn", "rope.scaling.factor": math.e, "rope.scaling.attn_factor": 2.0},
            {"rope_type": "yarn", "attention_factor": 2.2},
        ),
    ],
)
def test_scaled_positions_are_those_of_llama_cpp(
    given: dict[str, Any], expected: dict[str, Any], tmp_path: Path
) -> None:
    metadata = {f"llama.{name}": value for name, value in given.items()}
    model = tiny("llama", vocab_size=VOCAB_SIZE, num_hidden_layers=1)
    file = read_gguf([write_gguf(tmp_path / "model.gguf", model, metadata=metadata)])
    found = rope_of(Metadata(file), head_dim=16)
    assert {name: found[name] for name in expected} == pytest.approx(expected)
