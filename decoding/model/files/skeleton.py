"""A model built of its configuration alone, and filled layer by layer, so that little is unpacked at a time.

Knows no file format. Invariant: every parameter of a filled model comes from the files.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook
from transformers import AutoModelForCausalLM, PreTrainedModel

from decoding.errors import ConfigError, listed
from decoding.kernels.cpu.program import one_thread
from decoding.model.experts.gates import gate_of, kernel_of
from decoding.model.experts.separate import ExpertLayers, SeparateExperts, adopt
from decoding.model.weights import check_numbers, place_own_rotary
from decoding.process.machine import cores
from decoding.weights.linear import Embedding, Linear, held_by
from decoding.weights.matrix import Matrix, Target

EXPERTS = ("gate_proj", "up_proj", "down_proj")


def empty_model(config: Any, dtype: torch.dtype) -> PreTrainedModel:
    """The model with eager attention: its buffers hold what the configuration says, its parameters nothing."""

    def to_meta(_module: nn.Module, _name: str, parameter: nn.Parameter | None) -> nn.Parameter | None:
        is_empty = parameter is None or parameter.is_meta
        return parameter if is_empty else nn.Parameter(parameter.to("meta"), requires_grad=False)  # type: ignore[union-attr]

    hook = register_module_parameter_registration_hook(to_meta)  # type: ignore[arg-type]
    try:
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="eager")
    finally:
        hook.remove()
    place_own_rotary(model)
    return model


def fill(model: PreTrainedModel, weights: Mapping[str, Matrix], target: Target) -> None:
    """Give the model its weights, by the names of its parameters; an expert's layers are named as if each were a module
    (experts.0.gate_proj.weight). Raises ConfigError where a weight is missing, left over or of another shape."""
    left = dict(weights)
    wanted = _expert_layers(model, left) | _layers(model, left)
    with one_thread(), ThreadPoolExecutor(cores().usable) as pool:  # each thread a layer
        linears = dict(
            zip(wanted, pool.map(lambda layer: _linear(layer[0], layer[1], target), wanted.values()), strict=True)
        )
    _place_experts(model, linears, target.dtype)
    _place_layers(model, linears)
    for name, parameter in list(model.named_parameters()):
        if not parameter.is_meta:
            continue
        weight = _taken(left, name, tuple(parameter.shape))
        parent, _, own = name.rpartition(".")
        setattr(model.get_submodule(parent), own, nn.Parameter(_dense(weight, target), requires_grad=False))
    for name, buffer in model.named_buffers():
        if name in left:
            buffer.copy_(_dense(_taken(left, name, tuple(buffer.shape)), replace(target, dtype=buffer.dtype)))
    if left:
        raise ConfigError(f"its tensors have no place in a {model.config.model_type} model: {listed(left)}")
    for module in model.modules():
        for name, buffer in module.named_buffers(recurse=False):
            setattr(module, name, buffer.to(target.device))
    check_numbers(model)


def _layers(model: PreTrainedModel, left: dict[str, Matrix]) -> dict[str, tuple[Matrix, Matrix | None]]:
    """Matrix and bias of every linear layer and of the embedding, by the module's name. A tied head has none."""
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    layers: dict[str, tuple[Matrix, Matrix | None]] = {}
    for name, module in model.named_modules():
        if module is embedding:
            layers[name] = _taken(left, f"{name}.weight", tuple(module.weight.shape)), None
        elif type(module) is nn.Linear and not (module is head and _is_tied(model)):
            bias = None if module.bias is None else _taken(left, f"{name}.bias", (module.out_features,))
            layers[name] = _taken(left, f"{name}.weight", (module.out_features, module.in_features)), bias
    return layers


def _place_layers(model: PreTrainedModel, linears: dict[str, nn.Module]) -> None:
    """Put the rest of these layers into the model; a head that is tied shares the embedding's matrix."""
    embedding = model.get_input_embeddings()
    name = next(name for name, module in model.named_modules() if module is embedding)
    linear = linears.pop(name)
    matrix = held_by(linear)
    if matrix is not None:  # Gemma 3's embedding multiplies what it looks up
        model.set_submodule(name, Embedding(matrix, getattr(embedding, "embed_scale", None)))
    else:
        embedding.weight = linear.weight
    if _is_tied(model):
        model.set_output_embeddings(linear)
    for name, linear in linears.items():
        model.set_submodule(name, linear)


def _is_tied(model: PreTrainedModel) -> bool:
    return bool(model.config.get_text_config().tie_word_embeddings) and model.get_output_embeddings() is not None


def _expert_layers(model: PreTrainedModel, left: dict[str, Matrix]) -> dict[str, tuple[Matrix, Matrix | None]]:
    """Matrix and bias of every layer of every expert that the files have apart."""
    layers: dict[str, tuple[Matrix, Matrix | None]] = {}
    for name, module in model.named_modules():
        if f"{name}.0.gate_proj.weight" not in left:
            continue
        own: Any = module
        has_bias = hasattr(own, "down_proj_bias")  # gpt-oss, whose matrices are transposed
        width, inner = own.down_proj.shape[:0:-1] if has_bias else own.down_proj.shape[1:]
        shapes = {"gate_proj": (inner, width), "up_proj": (inner, width), "down_proj": (width, inner)}
        for number in range(own.num_experts):
            for part, shape in shapes.items():
                layer = f"{name}.{number}.{part}"
                bias = _taken(left, f"{layer}.bias", shape[:1]) if has_bias else None
                layers[layer] = _taken(left, f"{layer}.weight", shape), bias
    return layers


def _place_experts(model: PreTrainedModel, linears: dict[str, nn.Module], dtype: torch.dtype) -> None:
    for name, module in list(model.named_modules()):
        if f"{name}.0.gate_proj" in linears:
            own: Any = module
            experts = [
                ExpertLayers(*(linears.pop(f"{name}.{number}.{part}") for part in EXPERTS))
                for number in range(own.num_experts)
            ]
            adopt(module, SeparateExperts(experts, gate_of(module), kernel_of(module, dtype)))


def _taken(left: dict[str, Matrix], name: str, shape: tuple[int, ...]) -> Matrix:
    weight = left.pop(name, None)
    if weight is None:
        raise ConfigError(f"its weights lack {name}")
    if tuple(weight.shape) != tuple(shape):
        raise ConfigError(
            f"its weights do not fit its metadata: {name} {tuple(weight.shape)} instead of {tuple(shape)}"
        )
    return weight


def _linear(matrix: Matrix, bias: Matrix | None, target: Target) -> nn.Module:
    """A layer of this matrix, or torch's where that is not to stay packed."""
    bias_O = None if bias is None else _dense(bias, target)
    if target.is_packed and not matrix.kind.is_float:
        return Linear(matrix.with_bias(bias_O).packed(target))
    with torch.device("meta"):
        linear = nn.Linear(matrix.shape[1], matrix.shape[0], bias_O is not None)
    linear.weight = nn.Parameter(_dense(matrix, target), requires_grad=False)
    if bias_O is not None:
        linear.bias = nn.Parameter(bias_O, requires_grad=False)
    return linear


def _dense(matrix: Matrix, target: Target) -> torch.Tensor:
    return matrix.dense(target.dtype).to(target.device, target.dtype)


def with_dense_embedding(model: PreTrainedModel, weights: Mapping[str, Matrix], target: Target) -> dict[str, Matrix]:
    """The same weights for a device, where rows are looked up as they are, and a head that is tied reads them."""
    embedding = model.get_input_embeddings()
    name = next(f"{name}.weight" for name, module in model.named_modules() if module is embedding)
    matrix = weights.get(name)
    if not target.by_triton or matrix is None:
        return dict(weights)
    return {**weights, name: matrix.as_floats(target.dtype)}


def num_bytes_of(weights: Mapping[str, Matrix], target: Target) -> int:
    """The bytes that a model of these weights takes."""
    return sum(matrix.nbytes_in(target) for matrix in weights.values())
