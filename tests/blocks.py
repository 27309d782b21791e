"""Tiny block heads, and what the published code says of them, in plain PyTorch."""

from __future__ import annotations

import json
from collections.abc import Sequence
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file
from torch import nn
from transformers import PreTrainedModel

from decoding.drafting.block.block_config import read_block_config
from decoding.drafting.block.checkpoint import save_block
from decoding.drafting.block.network import BlockHead
from decoding.training.heads.block.blocks import PaddedLesson, block_loss
from tests.heads import LAYER, NUM_LAYERS, replies_of
from tests.models import tiny

BLOCK = 6  # the root and five places
MASK = 5
NUM_UPDATES, NUM_ROOTS = 120, 6
Tensors = dict[str, torch.Tensor]


def fields_of(nested: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    """config.json in DFlash's layout; a change to None takes the field away. nested: changes of `dflash_config`."""
    own = {"mask_token_id": MASK, "target_layer_ids": [0, 1], **(nested or {})}
    fields = {
        "architectures": ["DFlashDraftModel"],
        **LAYER,
        "model_type": "qwen3",
        "num_hidden_layers": 2,
        "num_target_layers": NUM_LAYERS,
        "block_size": BLOCK,
        "rope_theta": 10000.0,
        "dflash_config": {name: value for name, value in own.items() if value is not None},
        **changes,
    }
    return {name: value for name, value in fields.items() if value is not None}


def corrected_fields(**changes: Any) -> dict[str, Any]:
    """config.json in DSpark's layout."""
    nowhere = {"mask_token_id": None, "target_layer_ids": None}
    own = {"mask_token_id": MASK, "target_layer_ids": [0, 1], "markov_rank": 8, "markov_head_type": "vanilla"}
    unused = {"num_anchors": 512, "enable_confidence_head": True, "confidence_head_with_markov": True}
    fields = fields_of(nowhere, architectures=["Qwen3DSparkModel"], **own, **unused, **changes)
    del fields["dflash_config"]
    return fields


def new_block(model: PreTrainedModel, fields: dict[str, Any] | None = None) -> BlockHead:
    """Random weights, large enough that what is named differs from place to place."""
    embedding = nn.Embedding.from_pretrained(model.get_input_embeddings().weight.detach())
    output = deepcopy(model.get_output_embeddings()).requires_grad_(False)
    head, generator = (
        BlockHead(read_block_config(fields or fields_of(), NUM_LAYERS), embedding, output),
        torch.Generator(),
    )
    for name, weight in head.own_state().items():
        if "norm" in name:
            weight.copy_(1 + 0.3 * torch.randn(weight.shape, generator=generator))
        else:
            weight.copy_(1.5 * weight.shape[-1] ** -0.5 * torch.randn(weight.shape, generator=generator))
    return head


@cache
def trained_block(model_type: str) -> BlockHead:
    """A head that has followed the tiny target's own replies for some seconds. To be copied."""
    model, generator = tiny(model_type), torch.Generator().manual_seed(0)
    ids_BT = replies_of(model, generator)
    with torch.no_grad():
        output = model(input_ids=ids_BT, output_hidden_states=True, use_cache=False)
    features_BTF = torch.cat([output.hidden_states[1], output.hidden_states[2]], dim=-1)
    head = new_block(model)
    optimizer = torch.optim.Adam([each for each in head.parameters() if each.requires_grad], lr=3e-3)
    is_learned_BT = (torch.arange(ids_BT.shape[1]) < ids_BT.shape[1] - 1).expand_as(ids_BT)
    for _ in range(NUM_UPDATES):
        chosen = torch.randint(len(ids_BT), (16,), generator=generator)
        learned = is_learned_BT[chosen]
        lesson = PaddedLesson(ids_BT[chosen], features_BTF[chosen], output.logits[chosen].softmax(-1), learned)
        roots_BA = torch.randint(1, ids_BT.shape[1] - 1, (16, NUM_ROOTS), generator=generator)
        loss = block_loss(head, lesson, roots_BA).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return head


def write_block(head: BlockHead, folder: Path, **changes: torch.Tensor | None) -> Path:
    """A checkpoint as the published ones are. changes: tensors by name; None leaves one out."""
    folder.mkdir(exist_ok=True)
    save_block(head, folder, NUM_LAYERS)
    if changes:
        from safetensors.torch import save_file

        tensors = load_file(folder / "model.safetensors") | changes
        save_file({name: each for name, each in tensors.items() if each is not None}, folder / "model.safetensors")
    return folder


class Published:
    """The published code's forward of one block, from the files of a checkpoint."""

    def __init__(self, folder: Path, model: PreTrainedModel) -> None:
        self.fields: dict[str, Any] = json.loads((folder / "config.json").read_text())
        self.tensors: Tensors = load_file(folder / "model.safetensors")
        self.model = model
        self.is_from_root = "DSpark" in self.fields["architectures"][0]

    def norm(self, rows: torch.Tensor, name: str) -> torch.Tensor:
        variance = rows.pow(2).mean(-1, keepdim=True)
        return rows * torch.rsqrt(variance + self.fields["rms_norm_eps"]) * self.tensors[f"{name}.weight"]

    def linear(self, rows: torch.Tensor, name: str) -> torch.Tensor:
        product = rows @ self.tensors[f"{name}.weight"].T
        return product + self.tensors[f"{name}.bias"] if f"{name}.bias" in self.tensors else product

    def turned(self, rows_HTD: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Rotary embedding."""
        width = rows_HTD.shape[-1]
        rope = self.fields.get("rope_parameters") or self.fields
        angles = positions[:, None] / rope["rope_theta"] ** (torch.arange(0, width, 2) / width)
        cosines, sines = angles.cos().repeat(1, 2), angles.sin().repeat(1, 2)
        low, high = rows_HTD.chunk(2, dim=-1)
        return rows_HTD * cosines + torch.cat((-high, low), dim=-1) * sines

    @torch.no_grad()
    def says(self, tokens: NDArray[np.int32], drafted: Sequence[int] = ()) -> torch.Tensor:
        """[places, V]: logits of the places after these tokens, of which the last is the block's root, as far as there
        is a token before; drafted: those after the root."""
        fields, nested = self.fields, self.fields["dflash_config"]
        ids_1T = torch.from_numpy(tokens)[None].long()
        states = self.model(input_ids=ids_1T[:, :-1], output_hidden_states=True, use_cache=False).hidden_states
        features = torch.cat([states[layer + 1][0] for layer in nested["target_layer_ids"]], dim=-1)
        context = self.norm(self.linear(features, "fc"), "hidden_norm")
        ids = torch.full((fields["block_size"],), nested["mask_token_id"])
        ids[0] = ids_1T[0, -1]
        hidden = self.model.get_input_embeddings().weight[ids] * nested.get("input_embedding_scale", 1.0)
        for layer in range(fields["num_hidden_layers"]):
            name = f"layers.{layer}"
            hidden = hidden + self.attention(self.norm(hidden, f"{name}.input_layernorm"), context, layer)
            normed = self.norm(hidden, f"{name}.post_attention_layernorm")
            gate = nn.functional.silu(self.linear(normed, f"{name}.mlp.gate_proj"))
            hidden = hidden + self.linear(gate * self.linear(normed, f"{name}.mlp.up_proj"), f"{name}.mlp.down_proj")
        first = 0 if self.is_from_root else 1
        logits: torch.Tensor = self.model.get_output_embeddings()(self.norm(hidden, "norm")[first:])
        logits = logits * nested.get("output_multiplier", 1.0)
        cap = nested.get("final_logit_softcapping")
        logits = torch.tanh(logits / cap) * cap if cap else logits
        if "markov_head.markov_w1.weight" not in self.tensors:
            return logits
        before = torch.tensor([int(tokens[-1]), *drafted])[: len(logits)]
        added = self.tensors["markov_head.markov_w1.weight"][before] @ self.tensors["markov_head.markov_w2.weight"].T
        return logits[: len(before)] + added

    def attention(self, rows: torch.Tensor, context: torch.Tensor, layer: int) -> torch.Tensor:
        fields, name = self.fields, f"layers.{layer}.self_attn"
        width, group = fields["head_dim"], fields["num_attention_heads"] // fields["num_key_value_heads"]
        num_before, num_rows = len(context), len(rows)
        both = torch.cat((context, rows))

        def heads(source: torch.Tensor, part: str) -> torch.Tensor:
            return self.linear(source, f"{name}.{part}_proj").unflatten(-1, (-1, width))

        positions = torch.arange(num_before + num_rows)
        query = self.turned(self.norm(heads(rows, "q"), f"{name}.q_norm").transpose(0, 1), positions[num_before:])
        key = self.turned(self.norm(heads(both, "k"), f"{name}.k_norm").transpose(0, 1), positions)
        value = heads(both, "v").transpose(0, 1)
        scores = query @ key.repeat_interleave(group, 0).transpose(1, 2) * width**-0.5
        ahead = positions - positions[num_before:, None]
        if fields.get("is_causal"):
            scores = scores.masked_fill(ahead > 0, float("-inf"))
        if fields["layer_types"][layer] == "sliding_attention":
            scores = scores.masked_fill(ahead.abs() >= fields["sliding_window"], float("-inf"))
        out = scores.softmax(-1) @ value.repeat_interleave(group, 0)
        return self.linear(out.transpose(0, 1).flatten(1), f"{name}.o_proj")
