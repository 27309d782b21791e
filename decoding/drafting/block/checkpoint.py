"""A block head's folder, in DFlash's layout: loaded and saved.

Knows tensors by name and shape only. Invariant: what is loaded fits its target, tensor by tensor.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import save
from torch import nn

from decoding.core.files.output import replace_file
from decoding.drafting.block.block_config import BlockConfig, block_fields, read_block_config
from decoding.drafting.block.network import BlockHead
from decoding.drafting.eagle.checkpoint import Tensors, check_tensors, read_fields, read_tensors
from decoding.errors import ConfigError
from decoding.model.target_model import TargetModel
from decoding.model.weights import check_numbers

UNUSED = ("embed_tokens.", "lm_head.", "confidence_head.", "rotary_emb.")  # the target's, of no use here, or made anew


def load_block(folder: Path, target: TargetModel) -> BlockHead:
    """A block head on its target's device and in its dtype, with the target's embedding and output layer.

    Raises ConfigError naming the field or tensor that does not fit, is missing or is not known.
    """
    shared = target.shared
    embeddings_VE = shared.embeddings.detach()
    own = nn.Embedding(embeddings_VE.shape[0], embeddings_VE.shape[1], _weight=embeddings_VE, _freeze=True)
    embedding = own if shared.packed_embedding is None else shared.packed_embedding
    return assemble_block(folder, embedding, shared.output, embeddings_VE, target.num_layers)


def assemble_block(
    folder: Path, embedding: nn.Module, output: nn.Module, embeddings_VE: torch.Tensor, num_layers: int
) -> BlockHead:
    """embeddings_VE: the target's, whose size, device and dtype count; num_layers: the target's."""
    try:
        config, tensors = read_block_config(read_fields(folder), num_layers), read_tensors(folder)
    except (OSError, ValueError, TypeError, SafetensorError) as error:
        raise ConfigError(f"the head in {folder} cannot be loaded: {error}") from error
    try:
        _check_widths(config, embeddings_VE)
        head = BlockHead(config, embedding, output)
        _check_copies(tensors, embeddings_VE)
        own: Tensors = {name: each for name, each in tensors.items() if not name.startswith(UNUSED)}
        check_tensors(head.own_state(), own)
        converted = {name: each.to(embeddings_VE.dtype) for name, each in own.items()}
        head.load_state_dict(converted, strict=False, assign=True)
        check_numbers(head)
    except ConfigError as error:
        raise ConfigError(f"the head in {folder} cannot be served: {error}") from error
    return head.to(embeddings_VE.device)


def save_block(head: BlockHead, folder: Path, num_target_layers: int) -> None:
    """Write config.json and model.safetensors, whole or not at all."""
    tensors = {name: each.detach().contiguous().cpu() for name, each in head.own_state().items()}
    fields = block_fields(head.config, num_target_layers) | {"dtype": str(head.fc.weight.dtype).removeprefix("torch.")}
    with replace_file(folder / "model.safetensors") as file:
        file.write(save(tensors, metadata={"format": "pt"}))
    with replace_file(folder / "config.json") as file:
        file.write(json.dumps(fields, indent=2).encode() + b"\n")


def _check_copies(tensors: Tensors, embeddings_VE: torch.Tensor) -> None:
    """A file may have the target's embeddings and output layer again, which are not read; no others."""
    own_VE = tensors.get("embed_tokens.weight")
    if own_VE is None:
        return
    if own_VE.shape != embeddings_VE.shape or not torch.equal(own_VE.to(embeddings_VE), embeddings_VE):
        raise ConfigError("embed_tokens.weight is not the target's, which is the one that is used")


def _check_widths(config: BlockConfig, embeddings_VE: torch.Tensor) -> None:
    num_tokens, width = embeddings_VE.shape
    if config.draft_vocab_size != num_tokens:
        raise ConfigError(f"its vocab_size is {config.draft_vocab_size}, and the target has {num_tokens} tokens")
    if config.width != width:
        raise ConfigError(f"its hidden_size is {config.width}, and the target's, whose embedding it uses, is {width}")
