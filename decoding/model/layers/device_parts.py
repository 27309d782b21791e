"""The rule for decoder layers on a device, found by the form that the CPU's are found by, and tried on random rows.

Invariant: a layer whose trial differs by more than its dtype rounds is not replaced.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn
from transformers.activations import SiLUActivation

from decoding.core.layer import LayerSpec
from decoding.errors import PartRefused
from decoding.model.layers.device_layer import DeviceLayer, DeviceMlp, Norm, OwnMlp, Parts, products_of
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
from decoding.model.replacing.replacer import Calls, Place, Rule, check_same
from decoding.model.seam import Seam
from decoding.weights.linear import matrix_of

TRIAL_SCALE = 0.01  # of a trial's rows, which are small beside what a layer adds to them


def layer_rule(seam: Seam) -> Rule:
    """Of layers in the model of `seam`."""
    return Rule(
        "layers fused", partial(attends, seam), lambda place: [_fused(place.module, seam)], partial(_check_rows, seam)
    )


def _fused(layer: nn.Module, seam: Seam) -> DeviceLayer:
    """With the parts of `layer`, still to be tried."""
    attention = inner(layer).get("self_attn")
    spec = None if attention is None else seam.spec_of(attention)
    if spec is None:
        raise PartRefused(OTHER_FORM)
    parts = _moved_parts_of(layer, spec)
    torch.cuda.empty_cache()  # of pieces of other sizes than the next layer needs
    return DeviceLayer(layer, parts, seam, spec)


def _moved_parts_of(layer: nn.Module, spec: LayerSpec) -> Parts:
    """The layer's parts. All its weights move, be they joined or not: what they leave behind on a device is then one
    piece, in which the next layer's have room."""
    linears = [each for each in layer.modules() if type(each) is nn.Linear]
    before = [each.weight.data for each in linears]  # held until all have moved
    parts = _parts_of(layer, spec)
    for linear, weight_OI in zip(linears, before, strict=True):
        if linear.weight.data_ptr() == weight_OI.data_ptr():
            linear.weight.data = weight_OI.clone()
    return parts


def _parts_of(layer: nn.Module, spec: LayerSpec) -> Parts:
    """The layer's parts, of which those with the same input are joined."""
    children = inner(layer)
    attention = of_attention(children["self_attn"]) if children.keys() == CHILDREN else None
    if attention is None:
        raise PartRefused(OTHER_FORM)
    names = ["q_norm", "k_norm"] if "q_norm" in attention else []
    input_norm, mlp_norm = _norm_of(children["input_layernorm"]), _norm_of(children["post_attention_layernorm"])
    head_norms = [_norm_of(attention[name]) for name in names]
    if input_norm is None or mlp_norm is None or None in head_norms or spec.key_dim % 2:
        raise PartRefused(OTHER_FORM)
    width = input_norm.weight_E.numel()
    norms = [mlp_norm, *(norm for norm in head_norms if norm is not None)]
    linears = [attention[name] for name in ("q_proj", "k_proj", "v_proj", "o_proj")]
    are_norms = [norm.weight_E.numel() for norm in norms] == [width, *[spec.key_dim] * len(names)]
    if not are_norms or [_shape_of(each) for each in linears] != shapes_of(spec, width, width):
        raise PartRefused(OTHER_FORM)
    *inputs, output = linears
    mlp = _mlp_of(children["mlp"], width)
    return Parts(input_norm, products_of(inputs), tuple(norms[1:]), output, mlp_norm, mlp)


def _mlp_of(module: nn.Module, width: int) -> DeviceMlp | OwnMlp:
    """A gated MLP by our kernels, any other as it is."""
    known = of_gated_mlp(module)
    if known is None or type(known.get("act_fn", nn.SiLU())) not in (nn.SiLU, SiLUActivation):
        return OwnMlp(module)
    gate, up, down = (known[name] for name in ("gate_proj", "up_proj", "down_proj"))
    shapes = [_shape_of(each) for each in (gate, up, down)]
    if None in shapes or shapes != [(down.in_features, width), (down.in_features, width), (width, down.in_features)]:
        return OwnMlp(module)
    return DeviceMlp(products_of([gate, up]), down)


def _norm_of(module: nn.Module) -> Norm | None:
    """A root-mean-square norm, as far as its names say."""
    own: Any = module
    eps = getattr(own, "variance_epsilon", getattr(own, "eps", None))
    is_norm = type(module).__name__.endswith("RMSNorm") and [name for name, _ in module.named_parameters()] == [
        "weight"
    ]
    return Norm(own.weight.detach(), eps) if is_norm and isinstance(eps, float) else None


def _shape_of(linear: Any) -> tuple[int, int] | None:
    """[outputs, inputs] of a layer that these kernels go with."""
    matrix = matrix_of(linear)
    is_known = type(linear) is nn.Linear or (matrix is not None and matrix.form is not None)
    return (linear.out_features, linear.in_features) if is_known else None


def _check_rows(seam: Seam, fused: DeviceLayer, _place: Place, calls: Calls) -> None:
    """Random rows must have the same results as by the layer's own code."""
    if not calls or not all(len(call.arguments) == 1 and has_tables(call, fused.spec) for call in calls):
        raise PartRefused(OTHER_FORM)
    for call in calls:
        given = torch.randn(call.result.shape, generator=torch.Generator().manual_seed(0)) * TRIAL_SCALE
        rows_1ME = given.to(call.result)
        with torch.inference_mode(), seam.running(seam.backend.prepare(call.batch)):
            own, found = (partial(run, rows_1ME, **call.named) for run in (fused.layer, fused))
            check_same(own, found)
