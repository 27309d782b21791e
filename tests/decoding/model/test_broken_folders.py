"""A model's folder that is broken is refused with one sentence that says what is wrong with it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from decoding.config import EngineConfig
from decoding.drafting.draft_model.draft_model import load_draft_model
from decoding.errors import GanderError
from decoding.model.target_model import TargetModel
from tests.models import tiny
from tests.server.servers import byte_tokenizer

WEIGHTS = "model.safetensors"
QUERY = "model.layers.0.self_attn.q_proj.weight"
HEAD = "lm_head.weight"
Break = Callable[[Path], Any]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "whole"
    tiny("llama", num_hidden_layers=1).save_pretrained(folder)
    byte_tokenizer().save(str(folder / "tokenizer.json"))
    return folder


def write(content: bytes, name: str = WEIGHTS) -> Break:
    return lambda folder: (folder / name).write_bytes(content)


def truncate(folder: Path) -> None:
    whole = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(whole[: len(whole) // 2])


def change(name: str, tensor_of: Callable[[torch.Tensor], torch.Tensor | None]) -> Break:
    def changed(folder: Path) -> None:
        tensors = load_file(folder / WEIGHTS)
        tensor = tensor_of(tensors.pop(name))
        save_file(tensors | ({} if tensor is None else {name: tensor}), folder / WEIGHTS, metadata={"format": "pt"})

    return changed


def field(**fields: Any) -> Break:
    def changed(folder: Path) -> None:
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | fields))

    return changed


def pickled(folder: Path) -> None:
    (folder / WEIGHTS).unlink()
    (folder / "pytorch_model.bin").write_bytes(b"\x80\x02cposix\nsystem\nX\x05\x00\x00\x00false\x85R.")


def lose_a_shard(folder: Path) -> None:
    first, second = (f"model-0000{number}-of-00002.safetensors" for number in (1, 2))
    tensors = load_file(folder / WEIGHTS)
    (folder / WEIGHTS).rename(folder / first)
    index = {"metadata": {}, "weight_map": dict.fromkeys(tensors, first) | {HEAD: second}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


BROKEN: dict[str, tuple[Break, str]] = {
    "no weights": (lambda folder: (folder / WEIGHTS).unlink(), r"Error no file named model.safetensors"),
    "truncated": (truncate, r"its weights cannot be read: .*incomplete metadata"),
    "empty": (write(b""), r"its weights cannot be read: .*header too small"),
    "garbage": (write(b"garbage" * 1000), r"its weights cannot be read: .*header"),
    "a shard is not there": (lose_a_shard, r"No such file or directory: .*model-00002-of-00002.safetensors"),
    "a tensor is not there": (change(QUERY, lambda _: None), rf"its weights lack {QUERY}$"),
    "another shape": (
        change(QUERY, lambda _: torch.zeros(3, 5)),
        rf"its weights do not fit its config.json: {QUERY} \(3, 5\) instead of \(64, 64\)$",
    ),
    "NaN": (change(QUERY, lambda each: each * float("nan")), rf"its weights are not all finite numbers: {QUERY}$"),
    "one infinity": (
        change(HEAD, lambda each: each.index_put((torch.tensor(7), torch.tensor(3)), torch.tensor(float("inf")))),
        rf"its weights are not all finite numbers: {HEAD}$",
    ),
    "pickled": (pickled, r"its weights cannot be read: they are pickled, and not tensors alone$"),
    "a string for a number": (field(hidden_size="64"), r"Field 'hidden_size' expected int, got str"),
    "heads that do not divide": (field(num_attention_heads=7, head_dim=None), r"hidden size .* heads"),
    "fewer heads": (field(num_key_value_heads=3), r"its weights do not fit its config.json: "),
    "no heads": (field(num_attention_heads=0), r"."),
    "no context": (
        field(max_position_embeddings=0),
        r"config.json: max_position_embeddings is 0; it must be an integer",
    ),
    "less than no context": (field(max_position_embeddings=-5), r"config.json: max_position_embeddings is -5"),
    "a context of no number": (field(max_position_embeddings=10**30), r"config.json: max_position_embeddings is 10+;"),
    "an encoder": (
        field(model_type="bert", architectures=["BertModel"]),
        r"config.json: a model of type 'bert' is an encoder, each of whose tokens sees the whole text",
    ),
    "a billion layers": (field(num_hidden_layers=10**9), r"config.json asks for more than \d+ tensors, and its files"),
    "a list for each of a billion layers": (
        field(model_type="qwen2", num_hidden_layers=10**9, architectures=None),
        r"config.json asks for more than can be built",
    ),
    "a billion labels": (field(num_labels=10**9), r"config.json asks for more than can be built"),
    "an exabyte of layers": (field(intermediate_size=2**31 - 1), r"the model's weights take \d+.\d GiB, but only"),
    "an end token of no number": (
        lambda folder: (folder / "generation_config.json").write_text('{"eos_token_id": "</s>"}'),
        r"the model's eos_token_id is '</s>'; it must be an integer or a list of integers$",
    ),
    "a configuration cut short": (write(b'{"model_type"', "config.json"), r"config.json' is not a valid JSON file"),
    "a configuration of nothing": (write(b"{}", "config.json"), r"Unrecognized model in "),
}


def broken_copy(whole: Path, folder: Path, name: str) -> str:
    shutil.copytree(whole, folder)
    BROKEN[name][0](folder)
    return str(folder)


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_model_is_refused_with_the_cause(whole: Path, tmp_path: Path, name: str) -> None:
    folder = broken_copy(whole, tmp_path / "broken", name)
    with pytest.raises(GanderError, match=BROKEN[name][1]) as caught:
        TargetModel.load(EngineConfig(model=folder, device="cpu", threads=1), lambda *_: None)
    said = str(caught.value)
    assert said.startswith(f"model {folder!r} cannot be loaded: ") or "eos_token_id" in said
    assert "\n" not in said


@pytest.mark.parametrize("name", ["truncated", "a tensor is not there", "another shape", "NaN"])
def test_a_broken_draft_model_is_refused_by_its_own_name(whole: Path, tmp_path: Path, name: str) -> None:
    folder = broken_copy(whole, tmp_path / "draft", name)
    config = EngineConfig(model=str(whole), draft_model=folder, device="cpu", threads=1)
    with pytest.raises(GanderError, match=BROKEN[name][1]) as caught:
        load_draft_model(config, lambda *_: None)
    assert str(caught.value).startswith(f"model {folder!r} cannot be loaded: ")
