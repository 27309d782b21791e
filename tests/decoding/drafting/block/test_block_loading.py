"""A block head asked for by name drafts for the model it fits, under either option; any other is refused by name."""

from __future__ import annotations

import json
from copy import deepcopy
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from decoding.drafting.block.block_model import BlockModel
from decoding.drafting.block.checkpoint import load_block
from decoding.drafting.head_loading import load_head_model
from decoding.errors import ConfigError
from decoding.model.device.runner import silent
from decoding.model.target_model import TargetModel
from tests.blocks import corrected_fields, fields_of, new_block, write_block
from tests.models import tiny
from tests.pairs import CONFIG

QUERY = "layers.1.self_attn.q_proj.weight"


@cache
def target() -> TargetModel:
    return TargetModel.from_model(tiny("llama"), CONFIG)


def refusal(folder: Path, fields: dict[str, Any] | None = None, **changes: torch.Tensor | None) -> str:
    """What is said of a checkpoint with these fields and changed tensors."""
    write_block(new_block(tiny("llama")), folder, **changes)
    if fields is not None:
        (folder / "config.json").write_text(json.dumps(fields))
    with pytest.raises(ConfigError) as raised:
        load_head_model(replace(CONFIG, draft_head=str(folder)), target(), silent)
    return str(raised.value)


@pytest.mark.parametrize("option", ["draft_head", "draft_model"])
def test_a_block_head_is_known_by_its_config(tmp_path: Path, option: str) -> None:
    head = new_block(tiny("llama"))
    folder = str(write_block(head, tmp_path))
    model = load_head_model(replace(CONFIG, **{option: folder}), target(), silent)  # type: ignore[arg-type]
    assert isinstance(model, BlockModel)
    assert model.num_parameters <= sum(each.numel() for each in head.own_state().values())
    assert model.block_len == 6
    fields = fields_of({"attention_mode": "gqa"}, num_target_layers=3, max_window_layers=2, use_cache=True)
    (tmp_path / "config.json").write_text(json.dumps(fields))  # as the published ones are, and not saved here
    assert isinstance(load_head_model(replace(CONFIG, **{option: folder}), target(), silent), BlockModel)  # type: ignore[arg-type]


def test_a_head_that_the_token_before_corrects_is_known_with_what_it_brings_and_needs_not(tmp_path: Path) -> None:
    """Copies of the target's layers, and a head that says how far it can be trusted."""
    embeddings = target().shared.embeddings.detach()
    extra = {
        "embed_tokens.weight": embeddings.clone(),
        "lm_head.weight": torch.zeros_like(embeddings),
        "confidence_head.proj.weight": torch.zeros(1, 72),
        "confidence_head.proj.bias": torch.zeros(1),
    }
    head = new_block(tiny("llama"), corrected_fields())
    write_block(head, tmp_path, **extra)
    (tmp_path / "config.json").write_text(json.dumps(corrected_fields()))
    model = load_head_model(replace(CONFIG, draft_model=str(tmp_path)), target(), silent)
    assert isinstance(model, BlockModel)
    assert model.correction is not None
    assert (model.block_len, model.num_places) == (6, 6)
    write_block(head, tmp_path, **{"embed_tokens.weight": embeddings + 1})
    with pytest.raises(ConfigError, match=r"embed_tokens.weight is not the target's"):
        load_block(tmp_path, target())


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    nested = {"input_embedding_scale": 3.0, "output_multiplier": 0.4, "final_logit_softcapping": 2.0}
    windows = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 7, "is_causal": True}
    head = new_block(tiny("llama"), fields_of(nested, **windows))
    corrected = load_block(write_block(new_block(tiny("llama"), corrected_fields()), tmp_path), target()).config
    assert (corrected.names_from_root, corrected.markov_rank, corrected.are_causal) == (True, 8, (False, False))
    loaded = load_block(write_block(deepcopy(head), tmp_path), target())
    for name in ("feature_layers", "block_len", "mask_token_id", "windows", "are_causal", "softcap", "output_scale"):
        assert getattr(loaded.config, name) == getattr(head.config, name)
    assert all(torch.equal(each, loaded.own_state()[name]) for name, each in head.own_state().items())


def test_layers_with_windows_are_causal_where_nothing_else_is_said(tmp_path: Path) -> None:
    write_block(new_block(tiny("llama")), tmp_path)
    windows = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 7}
    for changes, nested, expected in (
        (windows, {}, (True, False)),
        (windows, {"causal": False}, (False, False)),
        (windows | {"is_causal": True}, {"causal": False}, (True, True)),
        ({"sliding_window": 7}, {"use_swa": True}, (False, False)),
    ):
        (tmp_path / "config.json").write_text(json.dumps(fields_of(nested, **changes)))
        config = load_block(tmp_path, target()).config
        assert config.are_causal == expected
        assert config.windows == ((7, 7) if nested.get("use_swa") else (7, 0))


@pytest.mark.parametrize(
    ("nested", "changes", "words"),
    [
        ({}, {"vocab_size": 250}, "vocab_size is 250, and the target has 199 tokens"),
        ({}, {"hidden_size": 32}, "hidden_size is 32, and the target's, whose embedding it uses, is 64"),
        ({"mask_token_id": 199}, {}, "mask_token_id is 199; it must be one of 199 tokens"),
        ({"mask_token_id": None}, {}, "mask_token_id is None"),
        ({"target_layer_ids": None}, {}, "target_layer_ids are None"),
        ({"target_layer_ids": [1, 3]}, {}, "target_layer_ids are [1, 3]; they must name some of the target's 3 layers"),
        ({"target_layer_ids": [1, 0]}, {}, "target_layer_ids are [1, 0]"),
        ({}, {"block_size": 1}, "block_size is 1; it must be a number from 2 on"),
        ({}, {"num_hidden_layers": None}, "num_hidden_layers = None"),
        ({}, {"num_attention_heads": "four"}, "num_attention_heads = 'four'"),
        ({}, {"rope_theta": None}, "has no rope_theta"),
        ({}, {"model_type": "llama"}, "model_type is 'llama'"),
        ({}, {"layer_types": ["full_attention"]}, "layer_types are ['full_attention']"),
        ({}, {"layer_types": ["sliding_attention"] * 2}, "has no sliding_window"),
        ({}, {"architectures": ["DFlash2DraftModel"]}, "architectures are ['DFlash2DraftModel']"),
        ({"markov_head_type": "rnn"}, {}, "markov_head_type = 'rnn', which is not known here"),
        ({"selector_rank": 256}, {}, "selector_rank = 256, which is not known here"),
        ({"attention_sink_bias": True}, {}, "attention_sink_bias = True, which is not known here"),
        ({}, {"is_neox_style": False}, "is_neox_style = False, which is not known here"),
        ({"attention_mode": "mla"}, {}, "attention_mode = 'mla', which is not known here"),
        ({}, {"num_experts": 8}, "num_experts = 8, which is not known here"),
    ],
)
def test_a_field_that_cannot_be_honoured_is_named(
    tmp_path: Path, nested: dict[str, Any], changes: dict[str, Any], words: str
) -> None:
    assert words in refusal(tmp_path, fields_of(nested, **changes))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({QUERY: None}, f"it has no tensor {QUERY}"),
        ({QUERY: torch.zeros(3, 3)}, f"{QUERY} is [3, 3] instead of [64, 64]"),
        ({"fc.weight": torch.zeros(64, 64)}, "fc.weight is [64, 64] instead of [64, 128]"),
        ({"layers.2.mlp.up_proj.weight": torch.zeros(96, 64)}, "a tensor layers.2.mlp.up_proj.weight, which is not"),
        ({"layers.0.attention_conv.base_kernel": torch.zeros(2)}, "layers.0.attention_conv.base_kernel, which is not"),
        ({"hidden_norm.weight": torch.full((64,), float("inf"))}, "are not all finite numbers: hidden_norm.weight"),
    ],
)
def test_a_tensor_that_does_not_fit_is_named(
    tmp_path: Path, changes: dict[str, torch.Tensor | None], words: str
) -> None:
    assert words in refusal(tmp_path, None, **changes)


def test_whatever_is_wrong_with_a_checkpoint_ends_in_a_sentence(tmp_path: Path) -> None:
    generator, own = np.random.default_rng(0), new_block(tiny("llama")).own_state()
    for name in generator.choice(sorted(own), 6, replace=False):
        shape = tuple(generator.integers(0, 3, generator.integers(0, 4)).tolist())
        assert "cannot be served" in refusal(tmp_path, None, **{name: torch.ones(shape)})
    odd: list[Any] = [-1, 0, "x", [], {}, 1.5]
    for name in ("hidden_size", "vocab_size", "block_size", "layer_types", "dflash_config", "num_attention_heads"):
        for value in odd:
            fields = fields_of(**{name: value})
            if fields != fields_of():
                assert "head" in refusal(tmp_path, fields), (name, value)
