"""Finds the decoder layers that a `DeviceLayer` computes as the model's own code does, and replaces them.

Layers are found by the form that the CPU's are found by, and tried on random rows. Invariant: a layer whose trial
differs by more than its dtype rounds is not replaced.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn
from transformers.activations import SiLUActivation

from decoding.cache.batch import StepBatch
from decoding.core.layer import LayerSpec
from decoding.model.device.layers.device_layer import DeviceLayer, DeviceMlp, Norm, OwnMlp, Parts, products_of
from decoding.model.experts.reading import why_other_results
from decoding.model.layers.form import (
    CHILDREN,
    Run,
    Trial,
    has_tables,
    inner,
    of_attention,
    of_gated_mlp,
    shapes_of,
    trials_of,
)
from decoding.model.seam import Seam
from decoding.weights.linear import matrix_of

TRIAL_SCALE = 0.01  # of a trial's rows, which are small beside what a layer adds to them
OTHER_FORM = "it has other parts, or is called otherwise, than layers of Llama's form"


class Layer(NamedTuple):
    """A decoder layer, by its name in its parent, and its attention."""

    parent: nn.Module
    name: str
    module: nn.Module
    spec: LayerSpec


class Fusion(NamedTuple):
    """num_fused: layers that were replaced. reasons: why others were not, each once."""

    num_fused: int
    reasons: tuple[str, ...]


def fuse_device_layers(model: nn.Module, seam: Seam, run: Run, batches: Sequence[StepBatch]) -> Fusion:
    """Replace all layers of `model` that can be. run: the model's forward, in `seam`."""
    layers = [
        Layer(parent, name, child, spec)
        for parent in model.modules()
        for name, child in parent.named_children()
        if (spec := _spec_of(child, seam)) is not None
    ]
    if not layers:
        return Fusion(0, (OTHER_FORM,))
    trials = [trials_of([each.module for each in layers], run, batch) for batch in batches]
    reasons = []
    for layer, *own in zip(layers, *trials, strict=True):
        reason = _replace(layer, seam, list(zip(batches, own, strict=True)))
        reasons += [] if reason is None else [reason]
        torch.cuda.empty_cache()  # of pieces of other sizes than the next layer needs
    return Fusion(len(layers) - len(reasons), tuple(dict.fromkeys(reasons)))


def _spec_of(layer: nn.Module, seam: Seam) -> LayerSpec | None:
    attention = inner(layer).get("self_attn")
    return None if attention is None else seam.spec_of(attention)


def _replace(layer: Layer, seam: Seam, trials: Sequence[tuple[StepBatch, Trial | None]]) -> str | None:
    """Replace a layer, or say why not."""
    parts = _moved_parts_of(layer)
    if parts is None:
        return OTHER_FORM
    fused = DeviceLayer(layer.module, parts, seam, layer.spec)
    for batch, trial in trials:
        reason = _why_not_the_same(fused, seam, batch, trial)
        if reason is not None:
            return reason
    setattr(layer.parent, layer.name, fused)
    return None


def _moved_parts_of(layer: Layer) -> Parts | None:
    """The layer's parts. All its weights move, be they joined or not: what they leave behind on a device is then one
    piece, in which the next layer's have room."""
    linears = [each for each in layer.module.modules() if type(each) is nn.Linear]
    before = [each.weight.data for each in linears]  # held until all have moved
    parts = _parts_of(layer)
    if parts is not None:
        for linear, weight_OI in zip(linears, before, strict=True):
            if linear.weight.data_ptr() == weight_OI.data_ptr():
                linear.weight.data = weight_OI.clone()
    return parts


def _parts_of(layer: Layer) -> Parts | None:
    """The layer's parts, of which those with the same input are joined; None if it has another form or no kernel."""
    children, spec = inner(layer.module), layer.spec
    attention = of_attention(children["self_attn"]) if children.keys() == CHILDREN else None
    if attention is None:
        return None
    names = ["q_norm", "k_norm"] if "q_norm" in attention else []
    input_norm, mlp_norm = _norm_of(children["input_layernorm"]), _norm_of(children["post_attention_layernorm"])
    head_norms = [_norm_of(attention[name]) for name in names]
    if input_norm is None or mlp_norm is None or None in head_norms or spec.key_dim % 2:
        return None
    width = input_norm.weight_E.numel()
    norms = [mlp_norm, *(norm for norm in head_norms if norm is not None)]
    linears = [attention[name] for name in ("q_proj", "k_proj", "v_proj", "o_proj")]
    are_norms = [norm.weight_E.numel() for norm in norms] == [width, *[spec.key_dim] * len(names)]
    if not are_norms or [_shape_of(each) for each in linears] != shapes_of(spec, width, width):
        return None
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
    is_known = type(linear) is nn.Linear or matrix_of(linear) is not None
    return (linear.out_features, linear.in_features) if is_known else None


def _why_not_the_same(fused: DeviceLayer, seam: Seam, batch: StepBatch, trial: Trial | None) -> str | None:
    """Why random rows have other results than by the layer's own code; None if they have the same."""
    if trial is None or len(trial.arguments) != 1 or not has_tables(trial, fused.spec):
        return OTHER_FORM
    given = torch.randn(trial.result.shape, generator=torch.Generator().manual_seed(0)) * TRIAL_SCALE
    rows_1ME = given.to(trial.result)
    with torch.inference_mode(), seam.running(seam.backend.prepare(batch)):
        own, found = (partial(run, rows_1ME, **trial.named) for run in (fused.layer, fused))
        return why_other_results(own, found)
