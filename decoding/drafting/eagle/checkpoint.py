"""A head's folder or hub repository: loaded in the layouts that people have, saved in that of speculators.

Knows tensors by name and shape only. Invariant: what is loaded fits its target, tensor by tensor.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from huggingface_hub import snapshot_download
from safetensors import SafetensorError
from safetensors.torch import load_file, save

from decoding.config import BUNDLED_MODEL
from decoding.core.files.output import replace_file
from decoding.drafting.eagle.head_config import HeadConfig, read_config, speculators_fields
from decoding.drafting.eagle.network import EagleHead
from decoding.errors import ConfigError
from decoding.model.checkpoint import BUNDLED_FOLDER
from decoding.model.weights import check_numbers

# Shape suffixes: V the target's vocabulary, W the draft vocabulary, E width.
FILES = ["config.json", "*.safetensors", "pytorch_model.bin"]
RENAMED = (
    ("model.", ""),
    ("midlayer.", "layers.0."),
    ("aux_norm_low.", "fc_norm.0."),
    ("aux_norm_mid.", "fc_norm.1."),
    ("aux_norm_high.", "fc_norm.2."),
    ("draft_id_to_target_id", "d2t"),
)
EMBEDDINGS = "embed_tokens.weight"
UNUSED = ("verifier_", "rotary_emb.", "layers.0.self_attn.rotary_emb.")  # of other loaders, or made anew here
Tensors = dict[str, torch.Tensor]


class HeadTarget(NamedTuple):
    """What a head must fit. embeddings_VE: the target's, whose size and dtype count."""

    embeddings_VE: torch.Tensor
    num_layers: int


def find_head(name: str) -> Path:
    """The folder of a head, downloaded where `name` is on the hub; the bundled model's name stands for its own. Raises
    ConfigError where it is nowhere."""
    if name == BUNDLED_MODEL:
        return BUNDLED_FOLDER / "head"
    try:
        return Path(name) if Path(name).is_dir() else Path(snapshot_download(name, allow_patterns=FILES))
    except (OSError, ValueError) as error:
        raise ConfigError(f"the head {name!r} is no folder and cannot be had from the hub: {error}") from error


def load_head(folder: Path, target: HeadTarget) -> EagleHead:
    """A head on its target's device and in its dtype, sharing its embeddings unless it brings others.

    Raises ConfigError naming the field or tensor that does not fit, is missing or is not known.
    """
    try:
        config, tensors = read_config(read_fields(folder), target.num_layers), read_tensors(folder)
    except (OSError, ValueError, SafetensorError) as error:
        raise ConfigError(f"the head in {folder} cannot be loaded: {error}") from error
    try:
        head = _assemble(config, tensors, target)
        check_numbers(head)
        return head
    except ConfigError as error:
        raise ConfigError(f"the head in {folder} cannot be served: {error}") from error


def save_head(head: EagleHead, folder: Path, verifier: str, num_steps: int = 5) -> None:
    """Write config.json and model.safetensors, whole or not at all. verifier: the target's name."""
    tensors = {name: tensor.detach().contiguous().cpu() for name, tensor in head.state_dict().items()}
    if not head.config.owns_embeddings:
        del tensors[EMBEDDINGS]
    fields = speculators_fields(head.config, verifier, num_steps)
    fields["dtype"] = str(head.fc.weight.dtype).removeprefix("torch.")
    with replace_file(folder / "model.safetensors") as file:
        file.write(save(tensors, metadata={"format": "pt"}))
    with replace_file(folder / "config.json") as file:
        file.write(json.dumps(fields, indent=2).encode() + b"\n")


def read_fields(folder: Path) -> dict[str, Any]:
    """Of its config.json."""
    fields: dict[str, Any] = json.loads((folder / "config.json").read_text())
    return fields


def read_tensors(folder: Path) -> Tensors:
    """All of a head's, by the names that networks here have. Raises ConfigError where there is no file of weights, or
    no plain one."""
    found: Tensors = {}
    for path in sorted(folder.glob("*.safetensors")):
        found |= load_file(path)
    if not found and (folder / "pytorch_model.bin").exists():
        try:
            found = torch.load(folder / "pytorch_model.bin", map_location="cpu", weights_only=True)
        except Exception as error:  # pickles can fail in any way
            raise ConfigError(f"pytorch_model.bin in {folder} does not hold tensors alone: {error}") from error
    if not found:
        raise ConfigError(f"{folder} has neither a safetensors file nor pytorch_model.bin")
    return {_renamed(name): tensor for name, tensor in found.items()}


def _renamed(name: str) -> str:
    for old, new in RENAMED:
        if name.startswith(old):
            name = new + name.removeprefix(old)
    return name


def _assemble(config: HeadConfig, tensors: Tensors, target: HeadTarget) -> EagleHead:
    tensors = {name: tensor for name, tensor in tensors.items() if not name.startswith(UNUSED)}
    num_tokens, width = target.embeddings_VE.shape
    if config.vocab_size != num_tokens:
        raise ConfigError(f"its vocab_size is {config.vocab_size}, and the target has {num_tokens} tokens")
    if config.target_width != width:
        raise ConfigError(f"it reads features of width {config.target_width}, and the target's is {width}")
    own_VE = _own_embeddings(config, tensors, target)
    embeddings_VE = target.embeddings_VE.detach() if own_VE is None else own_VE
    config = replace(
        config,
        owns_embeddings=own_VE is not None,
        fc_norm=config.fc_norm or "fc_norm.0.weight" in tensors,  # older files have the tensors and no flag
        norm_before_fc=config.norm_before_fc or "input_norm.weight" in tensors,
        qk_norm=config.qk_norm or "layers.0.self_attn.q_norm.weight" in tensors,
    )
    head = EagleHead(config, embeddings_VE)
    tensors[EMBEDDINGS] = embeddings_VE
    _complete_vocabulary(config, tensors)
    check_tensors(head.state_dict(), tensors)
    dtype = target.embeddings_VE.dtype
    converted = {name: each.to(dtype) if each.is_floating_point() else each for name, each in tensors.items()}
    head.load_state_dict(converted, assign=True)
    for parameter in head.parameters():
        parameter.requires_grad_(parameter is not head.embed_tokens.weight)
    return head.to(target.embeddings_VE.device)


def _own_embeddings(config: HeadConfig, tensors: Tensors, target: HeadTarget) -> torch.Tensor | None:
    """None where the file has none, or the target's."""
    shared_VE, own_VE = target.embeddings_VE.detach(), tensors.pop(EMBEDDINGS, None)
    if own_VE is None:
        if config.width != shared_VE.shape[1]:
            raise ConfigError(
                f"it has no {EMBEDDINGS}, and the target's are {shared_VE.shape[1]} wide where hidden_size is "
                f"{config.width}"
            )
        return None
    if own_VE.shape != (config.vocab_size, config.width):
        raise ConfigError(f"{EMBEDDINGS} is {list(own_VE.shape)} instead of {[config.vocab_size, config.width]}")
    own_VE = own_VE.to(shared_VE)
    return None if own_VE.shape == shared_VE.shape and torch.equal(own_VE, shared_VE) else own_VE


def _complete_vocabulary(config: HeadConfig, tensors: Tensors) -> None:
    """Both maps, checked; without them the draft vocabulary is the target's."""
    num_drafted, num_tokens = config.draft_vocab_size, config.vocab_size
    if "d2t" not in tensors:
        if num_drafted != num_tokens:
            raise ConfigError(f"it has no tensor d2t, and drafts {num_drafted} of {num_tokens} tokens")
        tensors["d2t"] = torch.zeros(num_tokens, dtype=torch.int64)
    if tensors["d2t"].shape != (num_drafted,):
        raise ConfigError(f"d2t is {list(tensors['d2t'].shape)} instead of {[num_drafted]}")
    tensors["d2t"] = tensors["d2t"].to(torch.int64)
    target_ids = tensors["d2t"] + torch.arange(num_drafted)
    if target_ids.min() < 0 or target_ids.max() >= num_tokens or len(set(target_ids.tolist())) < num_drafted:
        raise ConfigError("d2t does not give every draft token a token of the target's of its own")
    is_drafted = torch.zeros(num_tokens, dtype=torch.bool)
    is_drafted[target_ids] = True
    if not torch.equal(tensors.setdefault("t2d", is_drafted).to(torch.bool), is_drafted):
        raise ConfigError("t2d does not name the tokens that d2t does")
    tensors["t2d"] = is_drafted


def check_tensors(expected: Tensors, found: Tensors) -> None:
    """Raise ConfigError naming the first tensor that is missing, not known or of another shape."""
    for name in sorted(expected.keys() - found.keys()):
        raise ConfigError(f"it has no tensor {name}")
    for name in sorted(found.keys() - expected.keys()):
        raise ConfigError(f"it has a tensor {name}, which is not known here")
    for name, tensor in expected.items():
        if tensor.shape != found[name].shape:
            raise ConfigError(f"{name} is {list(found[name].shape)} instead of {list(tensor.shape)}")
