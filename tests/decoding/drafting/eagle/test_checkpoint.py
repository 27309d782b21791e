"""Heads in every layout that people have: what loads is the same head, and what does not fit is refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from decoding.drafting.eagle.checkpoint import HeadTarget, find_head, load_head, read_fields, save_head
from decoding.drafting.eagle.head_config import default_feature_layers, is_head, read_config
from decoding.drafting.eagle.network import EagleHead
from decoding.errors import ConfigError
from tests.heads import LAYER, NUM_LAYERS, attend_causally, fields_of, new_head
from tests.models import VOCAB_SIZE, tiny

Fields = dict[str, Any]
Tensors = dict[str, torch.Tensor]
TARGET = HeadTarget(tiny("llama").get_input_embeddings().weight, NUM_LAYERS)


def tensors_of(head: EagleHead) -> Tensors:
    """Without the embeddings, as most files are."""
    return {name: tensor.clone() for name, tensor in head.state_dict().items() if name != "embed_tokens.weight"}


def renamed(tensors: Tensors, old: str, new: str) -> Tensors:
    return {name.replace(old, new): tensor for name, tensor in tensors.items()}


def write(folder: Path, fields: Fields, tensors: Tensors, *, as_pickle: bool = False) -> Path:
    (folder / "config.json").write_text(json.dumps(fields))
    if as_pickle:
        torch.save(tensors, folder / "pytorch_model.bin")
    else:
        save_file(tensors, folder / "model.safetensors")
    return folder


def says(head: EagleHead) -> torch.Tensor:
    """What a head makes of some features, over two depths."""
    generator = torch.Generator().manual_seed(3)
    ids_BN = torch.randint(VOCAB_SIZE, (2, 9), generator=generator)
    features_BNF = torch.randn(2, 9, 3 * 64, generator=generator)
    positions_BN = torch.arange(9).expand(2, 9)
    with torch.no_grad():
        hidden_BNE = head(ids_BN, head.fuse(features_BNF), positions_BN, attend_causally)
        return head.logits(head(ids_BN.flip(1), hidden_BNE, positions_BN + 1, attend_causally))


def eagle(fields: Fields, tensors: Tensors) -> tuple[Fields, Tensors]:
    """yuhuili's."""
    return fields | {"architectures": ["LlamaForCausalLM"]}, renamed(tensors, "layers.0.", "midlayer.")


def specforge(fields: Fields, tensors: Tensors) -> tuple[Fields, Tensors]:
    """lmsys': layers counted by outputs, in a table of their own."""
    eagle_config = {"use_aux_hidden_state": True, "eagle_aux_hidden_state_layer_ids": [0, 1, 2]}
    return fields | {"eagle_config": eagle_config}, renamed(tensors, "layers.0.", "midlayer.")


def speculators(fields: Fields, tensors: Tensors) -> tuple[Fields, Tensors]:
    """RedHatAI's: the layer's fields in a table of their own, tensors of the verifier beside."""
    layer = {name: fields[name] for name in fields.keys() & {*LAYER, "rope_theta", "rope_parameters", "attention_bias"}}
    outer = {name: value for name, value in fields.items() if name not in layer}
    outer |= {"architectures": ["Eagle3DraftModel"], "speculators_model_type": "eagle3"}
    outer |= {"transformer_layer_config": layer, "eagle_aux_hidden_state_layer_ids": [1, 2, 3]}
    outer.setdefault("norm_before_residual", False)
    return outer, tensors | {"verifier_norm.weight": torch.ones(64)}


LAYOUTS = {"eagle": eagle, "specforge": specforge, "speculators": speculators}
KINDS: dict[str, Fields] = {
    "plain": {},
    "whole vocabulary": {"draft_vocab_size": None},
    "rope_theta": {"rope_theta": 500.0},
    "rope_parameters": {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}},
    "norm_before_residual": {"norm_before_residual": True},
    "norm_before_fc": {"norm_before_fc": True},
    "fc_norm": {"fc_norm": True},
    "norm_output": {"norm_output": True},
    "qwen3": {"model_type": "qwen3"},
    "attention_bias": {"attention_bias": True},
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_head_of_every_layout_and_kind_loads_and_says_the_same(tmp_path: Path, layout: str, kind: str) -> None:
    fields = fields_of(**KINDS[kind])
    head = new_head(TARGET.embeddings_VE, fields)
    folder = write(tmp_path, *LAYOUTS[layout](fields, tensors_of(head)), as_pickle=layout == "eagle")
    assert is_head(read_fields(folder)) or (layout, kind) == ("eagle", "whole vocabulary")  # whose config is a model's
    loaded = load_head(find_head(str(folder)), TARGET)
    assert torch.equal(says(loaded), says(head))
    assert torch.equal(loaded.target_ids, head.target_ids)
    assert loaded.config.feature_layers == (1, 2, 3)
    assert loaded.embed_tokens.weight.data_ptr() == TARGET.embeddings_VE.data_ptr()
    assert not loaded.embed_tokens.weight.requires_grad
    assert loaded.fc.weight.requires_grad


def test_the_kinds_of_heads_differ() -> None:
    """The test above would not pass if a flag were left out."""
    names = {kind: set(new_head(TARGET.embeddings_VE, fields_of(**KINDS[kind])).state_dict()) for kind in KINDS}
    for kind in ("norm_before_fc", "fc_norm", "qwen3", "attention_bias"):
        assert names[kind] > names["plain"]
    plain = new_head(TARGET.embeddings_VE, fields_of())
    for kind in ("norm_before_residual", "norm_output", "rope_theta", "rope_parameters"):
        other = new_head(TARGET.embeddings_VE, fields_of(**KINDS[kind]))
        other.load_state_dict(plain.state_dict())
        torch.nn.init.constant_(other.norm.weight, 0.5)
        torch.nn.init.constant_(plain.norm.weight, 0.5)
        assert (says(other) - says(plain)).abs().max() > 1e-3, kind


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_saved_loads_as_the_same_head(tmp_path: Path, kind: str) -> None:
    head = new_head(TARGET.embeddings_VE, fields_of(**KINDS[kind]))
    save_head(head, tmp_path / "head", "tiny")
    loaded = load_head(tmp_path / "head", TARGET)
    assert torch.equal(says(loaded), says(head))
    assert "layers.0.self_attn.q_proj.weight" in load_file(tmp_path / "head" / "model.safetensors")
    assert "embed_tokens.weight" not in load_file(tmp_path / "head" / "model.safetensors")
    save_head(loaded, tmp_path / "again", "tiny")
    for name in ("config.json", "model.safetensors"):
        assert (tmp_path / "again" / name).read_bytes() == (tmp_path / "head" / name).read_bytes()


def test_embeddings_of_its_own_are_kept_and_those_of_the_target_shared(tmp_path: Path) -> None:
    head = new_head(TARGET.embeddings_VE)
    for scale, is_own in ((1.0, False), (2.0, True)):
        own_VE = scale * TARGET.embeddings_VE.detach()
        folder = tmp_path / f"{scale}"
        folder.mkdir()
        loaded = load_head(write(folder, fields_of(), tensors_of(head) | {"embed_tokens.weight": own_VE}), TARGET)
        assert loaded.config.owns_embeddings == is_own
        assert torch.equal(loaded.embed_tokens.weight, own_VE)
        save_head(loaded, folder / "saved", "tiny")
        assert torch.equal(says(load_head(folder / "saved", TARGET)), says(loaded))


def test_older_norms_of_features_are_found_by_their_tensors(tmp_path: Path) -> None:
    head = new_head(TARGET.embeddings_VE, fields_of(fc_norm=True))
    torch.nn.init.uniform_(head.fc_norm[1].weight)
    tensors = tensors_of(head)
    for place, name in enumerate(("low", "mid", "high")):
        tensors = renamed(tensors, f"fc_norm.{place}.", f"aux_norm_{name}.")
    assert torch.equal(says(load_head(write(tmp_path, fields_of(), tensors), TARGET)), says(head))


def test_another_precision_becomes_the_targets(tmp_path: Path) -> None:
    tensors = tensors_of(new_head(TARGET.embeddings_VE))
    halves = {name: each.half() if each.is_floating_point() else each for name, each in tensors.items()}
    loaded = load_head(write(tmp_path, fields_of(), halves), TARGET)
    assert {parameter.dtype for parameter in loaded.parameters()} == {torch.float32}


REFUSED: dict[str, tuple[Fields, str]] = {
    "norm flag": ({"post_fc_norm": True}, "post_fc_norm"),
    "nested flag": ({"eagle_config": {"norm_twice": 1}}, "norm_twice"),
    "experts": ({"num_experts": 4}, "num_experts"),
    "vocabulary": ({"vocab_size": 200}, "vocab_size is 200, and the target has 199"),
    "feature width": ({"target_hidden_size": 32}, "width 32, and the target's is 64"),
    "method": ({"speculators_model_type": "dflash"}, "speculators_model_type is 'dflash'"),
    "layer": ({"model_type": "mamba"}, "model_type is 'mamba'"),
    "no width": ({"hidden_size": None}, "no hidden_size"),
    "layers": ({"eagle_aux_hidden_state_layer_ids": [1, 2, 9]}, "[1, 2, 9]"),
    "too few layers": ({"eagle_aux_hidden_state_layer_ids": [1, 2]}, "[1, 2]"),
    "heads": ({"num_attention_heads": 2}, "layers.0.self_attn.q_proj.weight is [64, 128] instead of [32, 128]"),
    "other width": ({"hidden_size": 32, "target_hidden_size": 64}, "no embed_tokens.weight"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_field_that_does_not_fit_is_named(tmp_path: Path, name: str) -> None:
    changes, words = REFUSED[name]
    tensors = tensors_of(new_head(TARGET.embeddings_VE))
    with pytest.raises(ConfigError) as raised:
        load_head(write(tmp_path, fields_of(**changes), tensors), TARGET)
    assert words in str(raised.value)


@pytest.mark.parametrize("name", ["fc.weight", "norm.weight", "lm_head.weight", "d2t", "layers.0.mlp.up_proj.weight"])
def test_a_missing_tensor_is_named(tmp_path: Path, name: str) -> None:
    tensors = tensors_of(new_head(TARGET.embeddings_VE))
    del tensors[name]
    with pytest.raises(ConfigError, match=f"no tensor {name}"):
        load_head(write(tmp_path, fields_of(), tensors), TARGET)


def test_a_tensor_that_is_not_known_is_named(tmp_path: Path) -> None:
    tensors = tensors_of(new_head(TARGET.embeddings_VE)) | {"layers.1.mlp.up_proj.weight": torch.zeros(2)}
    with pytest.raises(ConfigError, match=r"layers\.1\.mlp\.up_proj\.weight, which is not known"):
        load_head(write(tmp_path, fields_of(), tensors), TARGET)


def test_maps_of_the_vocabulary_that_contradict_themselves_are_refused(tmp_path: Path) -> None:
    tensors = tensors_of(new_head(TARGET.embeddings_VE))
    for changed, words in (
        ({"d2t": tensors["d2t"] + 150}, "d2t does not give"),
        ({"d2t": -torch.arange(120)}, "d2t does not give"),
        ({"t2d": ~tensors["t2d"]}, "t2d does not name"),
    ):
        with pytest.raises(ConfigError, match=words):
            load_head(write(tmp_path, fields_of(), tensors | changed), TARGET)


def test_a_pickle_of_more_than_tensors_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(fields_of()))
    torch.save({"fc.weight": Path("x")}, tmp_path / "pytorch_model.bin")
    with pytest.raises(ConfigError, match="does not hold tensors alone"):
        load_head(tmp_path, TARGET)


def test_a_folder_without_weights_and_one_of_a_model_are_told_apart(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(fields_of()))
    with pytest.raises(ConfigError, match="neither a safetensors file"):
        load_head(tmp_path, TARGET)
    (tmp_path / "config.json").write_text(json.dumps(LAYER | {"architectures": ["LlamaForCausalLM"]}))
    assert not is_head(read_fields(tmp_path))
    with pytest.raises(ConfigError, match="is no folder and cannot be had"):
        find_head(str(tmp_path / "nothing"))


def test_layers_are_eagles_own_or_lie_apart_and_are_counted_by_what_goes_into_them() -> None:
    assert default_feature_layers(32) == (2, 16, 29)
    assert default_feature_layers(7) == (2, 3, 4)
    for num_layers in range(3, 7):
        assert len(set(default_feature_layers(num_layers))) == 3
    with pytest.raises(ConfigError, match="reads 3 layers, and the model has 2"):
        default_feature_layers(2)
    name = "eagle_aux_hidden_state_layer_ids"
    for by_outputs in ({"eagle_config": {name: [1, 15, 28]}}, {name: [1, 15, 28]}, {name: [2, 16, 29]}, {}):
        assert read_config(fields_of(**by_outputs), 32).feature_layers == (2, 16, 29)
    assert read_config(fields_of(eagle_config={name: [3, 10, 30]}), 32).feature_layers == (4, 11, 31)
    assert read_config(fields_of(**{name: [3, 10, 32]}), 32).feature_layers == (3, 10, 32)
