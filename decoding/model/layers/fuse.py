"""Finds what a `FusedLayer` can replace with bit-identical results: decoder layers, and in others their gated MLPs.

What is fused is tried on inputs from the model's own forward. Invariant: a layer whose trial differs in one bit is not
replaced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import nn

from decoding.cache.batch import StepBatch
from decoding.core.layer import LayerSpec
from decoding.kernels.cpu.program import MOST_ROWS, Rooms
from decoding.model.experts.fused import runner_of
from decoding.model.experts.router import FusedRouter
from decoding.model.layers.activations import FusedSilu
from decoding.model.layers.decoder_layer import FusedLayer, Parts
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
from decoding.model.layers.fused_mlp import FusedMlp
from decoding.model.layers.mlp import GatedMlp, Mixture
from decoding.model.layers.norms import FusedRmsNorm
from decoding.model.seam import Seam
from decoding.weights.linear import matrix_of

Fuse = Callable[[nn.Module], FusedLayer | FusedMlp | None]


def fuse_layers(model: nn.Module, seam: Seam, run: Run, batches: Sequence[StepBatch]) -> int:
    """Replace all layers of `model` that can be fused, and in the others the MLPs; return how many layers. run: the
    model's forward, in `seam`."""
    rooms: dict[torch.dtype, Rooms] = {}
    num_fused = _replace(model, lambda layer: _fused(layer, seam, rooms), seam, run, batches)
    _replace(model, lambda layer: _fused_mlp(layer, rooms), seam, run, batches)
    return num_fused


def _replace(model: nn.Module, fuse: Fuse, seam: Seam, run: Run, batches: Sequence[StepBatch]) -> int:
    """Replace the modules that `fuse` fuses, where their trials are the same; return how many."""
    found: list[tuple[nn.Module, str, FusedLayer | FusedMlp]] = []
    for parent in _outside_of_fused(model):
        for name, layer in list(parent.named_children()):
            fused = fuse(layer)
            if fused is not None:
                found.append((parent, name, fused))
    if not found:
        return 0
    trials = [trials_of([fused.layer for _, _, fused in found], run, batch) for batch in batches]
    num_fused = 0
    for place, (parent, name, fused) in enumerate(found):
        if all(_is_same(fused, seam, batch, some[place]) for batch, some in zip(batches, trials, strict=True)):
            setattr(parent, name, fused)
            num_fused += 1
    return num_fused


def _outside_of_fused(module: nn.Module) -> Iterator[nn.Module]:
    """The module and those in it, but none that is in a fused layer."""
    if not isinstance(module, FusedLayer):
        yield module
        for child in list(module.children()):
            yield from _outside_of_fused(child)


def _fused(layer: nn.Module, seam: Seam, rooms: dict[torch.dtype, Rooms]) -> FusedLayer | None:
    """A fused layer with the parts of `layer`, still to be tried; None if the parts do not fit."""
    children = inner(layer)
    spec = seam.spec_of(children["self_attn"]) if children.keys() == CHILDREN else None
    parts = None if spec is None else parts_of(children, spec)
    if spec is None or parts is None:
        return None
    dtype = parts.input_norm.weight.dtype
    return FusedLayer(layer, parts, seam, spec, rooms.setdefault(dtype, Rooms(MOST_ROWS, dtype)))


def _fused_mlp(layer: nn.Module, rooms: dict[torch.dtype, Rooms]) -> FusedMlp | None:
    """A fused MLP with the parts of `layer`, still to be tried; None if the parts do not fit."""
    mlp = _mlp_of(layer)
    if not isinstance(mlp, GatedMlp) or mlp.few_rows == 0 or not mlp.fits(mlp.gate.shape[1]):
        return None
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


def _is_same(fused: FusedLayer | FusedMlp, seam: Seam, batch: StepBatch, trial: Trial | None) -> bool:
    if trial is None or (isinstance(fused, FusedLayer) and not has_tables(trial, fused.spec)):
        return False
    with torch.inference_mode(), seam.running(seam.backend.prepare(batch)):
        return torch.equal(fused(*trial.arguments, **trial.named), trial.result)
