"""A model's forward as a loop over its layers, where nothing else happens in the modelling code around them.

Invariant: logits have the bits of the model's own forward, which a trial has shown.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import nn

from decoding.model.layers.decoder_layer import FusedLayer
from decoding.model.layers.norms import FusedRmsNorm
from decoding.model.rowwise import RotaryTable

# Shape suffixes: M model rows, R rows that need logits, E width, V vocabulary.
OF_MODEL, OF_DECODER = {"model", "lm_head"}, {"embed_tokens", "layers", "norm", "rotary_emb"}


class Output(NamedTuple):
    """logits: [1, R, V] in the model's dtype."""

    logits: torch.Tensor


@dataclass(frozen=True, slots=True)
class Stack:
    """embedding: [V, E]; the others are modules of the model."""

    embedding: torch.Tensor
    rotary: RotaryTable
    layers: tuple[FusedLayer, ...]
    norm: FusedRmsNorm
    head: nn.Module

    def __call__(
        self, input_ids: torch.Tensor, position_ids: torch.Tensor, use_cache: bool, logits_to_keep: torch.Tensor
    ) -> Output:
        """Names are those of transformers; int64 [1, M], [1, M] and [R]."""
        hidden_1ME = nn.functional.embedding(input_ids, self.embedding)
        tables = self.rotary.forward(hidden_1ME, position_ids)
        for layer in self.layers:
            hidden_1ME = layer(
                hidden_1ME,
                attention_mask=None,
                position_embeddings=tables,
                position_ids=position_ids,
                past_key_values=None,
                use_cache=use_cache,
            )
        return Output(self.head(self.norm(hidden_1ME)[:, logits_to_keep]))


def stack_of(model: nn.Module) -> Stack | None:
    """What might stand for the model's own forward."""
    children: dict[str, Any] = dict(model.named_children())
    if children.keys() != OF_MODEL:
        return None
    parts: dict[str, Any] = dict(children["model"].named_children())
    if parts.keys() != OF_DECODER:
        return None
    layers, norm, rotary = tuple(parts["layers"]), parts["norm"], parts["rotary_emb"]
    are_known = all(isinstance(layer, FusedLayer) for layer in layers) and isinstance(norm, FusedRmsNorm)
    if not are_known or not isinstance(rotary, RotaryTable):
        return None
    return Stack(parts["embed_tokens"].weight.detach(), rotary, layers, norm, children["lm_head"])
