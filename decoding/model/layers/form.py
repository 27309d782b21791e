"""The form of decoder layers that can be fused, as in Llama, Qwen and others, and what stands in its place.

Parts are found by the names that transformers gives them. Knows no kernels. Invariant: names say which parts there may
be; a trial against the layer itself says what they compute.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import nn

from decoding.core.layer import LayerSpec
from decoding.model.replacing.replacer import Call, Place
from decoding.model.seam import Seam, is_joint

CHILDREN = {"input_layernorm", "self_attn", "post_attention_layernorm", "mlp"}
OF_ATTENTION = {"q_proj", "k_proj", "v_proj", "o_proj"}
NORMS_OF_HEADS = {"q_norm", "k_norm"}
OF_MLP = {"gate_proj", "up_proj", "down_proj"}  # and `act_fn`, where it is no function
OTHER_FORM = "they have other parts, or are called otherwise, than layers of Llama's form"
NAMES = {  # of LFM2, by those that most models have
    "operator_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "feed_forward": "mlp",
    "out_proj": "o_proj",
    "q_layernorm": "q_norm",
    "k_layernorm": "k_norm",
    "w1": "gate_proj",
    "w3": "up_proj",
    "w2": "down_proj",
}


class StandIn(nn.Module):
    """Replaces a decoder layer of this form, whose attention is `spec`. most_numbers: of the hidden states that it
    computes itself; more are left to `layer`, and so are calls with other arguments and steps with tokens that see each
    other."""

    def __init__(self, layer: nn.Module, spec: LayerSpec, most_numbers: int = sys.maxsize) -> None:
        super().__init__()
        self.layer, self.spec, self._most_numbers = layer, spec, most_numbers

    def __getattr__(self, name: str) -> Any:  # modelling code reads attributes of the layer that is replaced
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("layer"), name)

    def forward(
        self, hidden_states: torch.Tensor, *others: Any, position_embeddings: Any = None, **named: Any
    ) -> torch.Tensor:
        """Argument names are those of transformers."""
        is_more = hidden_states.numel() > self._most_numbers or is_joint()
        if is_more or others or position_embeddings is None:
            result: torch.Tensor = self.layer(hidden_states, *others, position_embeddings=position_embeddings, **named)
            return result
        cosines, sines = position_embeddings
        return self._run(hidden_states.contiguous(), cosines.contiguous(), sines.contiguous())

    def _run(self, hidden_1ME: torch.Tensor, cosines_1MD: torch.Tensor, sines_1MD: torch.Tensor) -> torch.Tensor:
        """[1, M, E]: what the layer makes of M tokens, given their rotary tables."""
        raise NotImplementedError


def inner(module: nn.Module) -> dict[str, Any]:
    """The module's children without identities, by the names that most models have."""
    children = module.named_children()
    return {NAMES.get(name, name): child for name, child in children if type(child) is not nn.Identity}


def of_attention(module: nn.Module) -> dict[str, Any] | None:
    """The parts of attention: four linear layers, and norms of queries and keys or none; None if it has others."""
    parts = inner(module)
    return parts if parts.keys() in (OF_ATTENTION, OF_ATTENTION | NORMS_OF_HEADS) else None


def of_gated_mlp(module: nn.Module) -> dict[str, Any] | None:
    """The parts of a gated MLP; None if it has others."""
    parts = inner(module)
    return parts if parts.keys() - {"act_fn"} == OF_MLP else None


def shapes_of(spec: LayerSpec, width: int, input_width: int) -> list[tuple[int, int]]:
    """[outputs, inputs] of the layers of queries, keys and values, and of the output."""
    return [
        (spec.num_query_heads * spec.key_dim, input_width),
        (spec.num_kv_heads * spec.key_dim, input_width),
        (spec.num_kv_heads * spec.value_dim, input_width),
        (width, spec.num_query_heads * spec.value_dim),
    ]


def attends(seam: Seam, place: Place) -> bool:
    """Whether a module of the seam's model has attention among its parts."""
    return any(seam.spec_of(child) is not None for child in place.module.children())


def has_tables(call: Call, spec: LayerSpec) -> bool:
    """Whether the layer was given rotary tables that turn whole heads: cosines and sines of each token."""
    tables, hidden = call.named.get("position_embeddings"), call.result
    shape = (1, hidden.shape[-2], spec.key_dim)
    return isinstance(tables, tuple) and all(each.shape == shape and each.dtype == hidden.dtype for each in tables)
