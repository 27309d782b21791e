"""The rules for what runs a few tokens in one call on the CPU: decoder layers, and in others their gated MLPs.

Both are tried on calls of the model's own forward. Invariant: a module whose trial differs in one bit is not replaced.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn

from decoding.core.layer import LayerSpec
from decoding.errors import PartRefused
from decoding.kernels.cpu.program import MOST_ROWS, Rooms
from decoding.model.experts.cpu_experts import runner_of
from decoding.model.experts.router import FusedRouter
from decoding.model.layers.activations import FusedSilu
from decoding.model.layers.cpu_layer import FusedLayer, Parts
from decoding.model.layers.form import (
    CHILDREN,
    OTHER_FORM,
    attends,
    has_tables,
    inner,
    of_attention,
    of_gated_mlp,
    shapes_of,
)
from decoding.model.layers.mlp import FusedMlp, GatedMlp, Mixture
from decoding.model.layers.norms import FusedRmsNorm
from decoding.model.replacing.replacer import Calls, Place, Rule
from decoding.model.seam import Seam
from decoding.weights.linear import matrix_of

OTHER_PARTS = "there is no kernel here for one of their parts"
OTHER_BITS = "they give other bits than the model's own code"
AnyRooms = dict[torch.dtype, Rooms]  # which layers and MLPs of one model share


def layer_rule(seam: Seam, rooms: AnyRooms) -> Rule:
    """Of layers in the model of `seam`."""
    return Rule(
        "layers fused",
        partial(attends, seam),
        lambda place: [_fused_layer(place.module, seam, rooms)],
        partial(_check_layer, seam),
    )


def mlp_rule(seam: Seam, rooms: AnyRooms) -> Rule:
    """Of gated MLPs outside of fused layers."""
    return Rule(
        "MLPs fused",
        lambda place: of_gated_mlp(place.module) is not None,
        lambda place: [_fused_mlp(place.module, rooms)],
        partial(_check_bits, seam),
    )


def _fused_layer(layer: nn.Module, seam: Seam, rooms: AnyRooms) -> FusedLayer:
    """A fused layer with the parts of `layer`, still to be tried."""
    children = inner(layer)
    spec = seam.spec_of(children["self_attn"]) if children.keys() == CHILDREN else None
    if spec is None:
        raise PartRefused(OTHER_FORM)
    parts = parts_of(children, spec)
    if parts is None:
        raise PartRefused(OTHER_PARTS)
    dtype = parts.input_norm.weight.dtype
    return FusedLayer(layer, parts, seam, spec, rooms.setdefault(dtype, Rooms(MOST_ROWS, dtype)))


def _fused_mlp(layer: nn.Module, rooms: AnyRooms) -> FusedMlp:
    """A fused MLP with the parts of `layer`, still to be tried."""
    mlp = _mlp_of(layer)
    if not isinstance(mlp, GatedMlp) or mlp.few_rows == 0 or not mlp.fits(mlp.gate.shape[1]):
        raise PartRefused(OTHER_PARTS)
    dtype = mlp.activation.dtype
    return FusedMlp(layer, mlp, rooms.setdefault(dtype, Rooms(MOST_ROWS, dtype)), mlp.gate.shape[1])


def parts_of(children: dict[str, nn.Module], spec: LayerSpec, num_inputs: int = 1) -> Parts | None:
    """The parts of a layer with these children, named `CHILDREN`; None if one has another form or no kernel.

    num_inputs: how many normed vectors attention reads side by side for each token (EAGLE-3's head reads two).
    """
    attention = of_attention(children["self_attn"])
    mlp = _mlp_of(children["mlp"])
    if attention is None or mlp is None:
        return None
    known: dict[str, Any] = children | attention
    query, key, value, output = (matrix_of(known[name]) for name in ("q_proj", "k_proj", "v_proj", "o_proj"))
    if query is None or key is None or value is None or output is None:
        return None
    parts = Parts(
        input_norm=known["input_layernorm"],
        query=query,
        key=key,
        value=value,
        head_norms=tuple(known[name] for name in ("q_norm", "k_norm") if name in known),
        output=output,
        mlp_norm=known["post_attention_layernorm"],
        mlp=mlp,
    )
    are_norms = all(isinstance(each, FusedRmsNorm) for each in parts.norms)
    return parts if are_norms and parts.few_rows > 0 and _fit(parts, spec, num_inputs) else None


def _mlp_of(module: nn.Module) -> GatedMlp | Mixture | None:
    """The parts of an MLP or a mixture of experts; None if it has another form or no kernel."""
    known = of_gated_mlp(module)
    if known is not None:
        gate, up, down = (matrix_of(known[name]) for name in ("gate_proj", "up_proj", "down_proj"))
        if gate is None or up is None or down is None:
            return None
        activation = known["act_fn"] if "act_fn" in known else FusedSilu(gate.dtype)
        return GatedMlp(gate, up, activation, down) if isinstance(activation, FusedSilu) else None
    known = inner(module)
    router, runner = known.get("gate", known.get("router")), runner_of(known.get("experts"))
    if len(known) != 2 or runner is None or not isinstance(router, FusedRouter):
        return None
    return Mixture(router, runner)


def _fit(parts: Parts, spec: LayerSpec, num_inputs: int) -> bool:
    """Whether the widths of consecutive parts match, so that no call reads or writes outside its buffers."""
    width = parts.input_norm.width
    norm_widths = [width, width, *[spec.key_dim] * len(parts.head_norms)]
    are_linears = [each.shape for each in parts.linears] == shapes_of(spec, width, num_inputs * width)
    return are_linears and [each.width for each in parts.norms] == norm_widths and parts.mlp.fits(width)


def _check_layer(seam: Seam, fused: FusedLayer, place: Place, calls: Calls) -> None:
    if not all(has_tables(call, fused.spec) for call in calls):
        raise PartRefused(OTHER_FORM)
    _check_bits(seam, fused, place, calls)


def _check_bits(seam: Seam, fused: FusedLayer | FusedMlp, _place: Place, calls: Calls) -> None:
    if not calls:
        raise PartRefused(OTHER_FORM)
    for call in calls:
        with torch.inference_mode(), seam.running(seam.backend.prepare(call.batch)):
            if not torch.equal(fused(*call.arguments, **call.named), call.result):
                raise PartRefused(OTHER_BITS)
