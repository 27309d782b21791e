"""A model built of its configuration alone, and filled layer by layer, so that little is unpacked at a time.

Knows no file format. Invariant: every parameter of a filled model comes from the files.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook
from transformers import AutoModelForCausalLM, PreTrainedModel

from decoding.errors import ConfigError, listed
from decoding.kernels.cpu.program import one_thread
from decoding.model.experts.gates import gate_of, kernel_of
from decoding.model.experts.separate import ExpertLayers, SeparateExperts, adopt
from decoding.model.files.weight import DenseWeight, PackedWeight, Target, Weight
from decoding.model.linear.grouped import GroupedEmbedding, GroupedLinear
from decoding.model.weights import check_numbers
from decoding.process.machine import cores

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
    return model


def fill(model: PreTrainedModel, weights: Mapping[str, Weight], target: Target) -> None:
    """Give the model its weights, by the names of its parameters; an expert's layers are named as if each were a module
    (experts.0.gate_proj.weight). Raises ConfigError where a weight is missing, left over or of another shape."""
    left = dict(weights)
    wanted = _expert_layers(model, left) | _layers(model, left)
    with one_thread(), ThreadPoolExecutor(cores().usable) as pool:  # each thread a layer
        linears = dict(zip(wanted, pool.map(lambda layer: target.linear(*layer), wanted.values()), strict=True))
    _place_experts(model, linears, target.dtype)
    _place_layers(model, linears)
    for name, parameter in list(model.named_parameters()):
        if not parameter.is_meta:
            continue
        weight = _taken(left, name, tuple(parameter.shape))
        parent, _, own = name.rpartition(".")
        setattr(model.get_submodule(parent), own, nn.Parameter(target.dense(weight), requires_grad=False))
    for name, buffer in model.named_buffers():
        if name in left:
            buffer.copy_(replace(target, dtype=buffer.dtype).dense(_taken(left, name, tuple(buffer.shape))))
    if left:
        raise ConfigError(f"its tensors have no place in a {model.config.model_type} model: {listed(left)}")
    for module in model.modules():
        for name, buffer in module.named_buffers(recurse=False):
            setattr(module, name, buffer.to(target.device))
    check_numbers(model)


def _layers(model: PreTrainedModel, left: dict[str, Weight]) -> dict[str, tuple[Weight, Weight | None]]:
    """Matrix and bias of every linear layer and of the embedding, by the module's name. A tied head has none."""
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    layers: dict[str, tuple[Weight, Weight | None]] = {}
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
    matrix = linears.pop(name)
    if isinstance(matrix, GroupedLinear):
        model.set_submodule(name, _scaled(GroupedEmbedding(matrix), embedding))
    else:
        embedding.weight = matrix.weight
    if _is_tied(model):
        model.set_output_embeddings(matrix)
    for name, linear in linears.items():
        model.set_submodule(name, linear)


def _is_tied(model: PreTrainedModel) -> bool:
    return bool(model.config.get_text_config().tie_word_embeddings) and model.get_output_embeddings() is not None


def _scaled(looked_up: GroupedEmbedding, original: nn.Module) -> nn.Module:
    """Gemma 3's embedding multiplies what it looks up."""
    scale = getattr(original, "embed_scale", None)
    return looked_up if scale is None else ScaledEmbedding(looked_up, scale)


class ScaledEmbedding(nn.Module):
    """An embedding whose rows are multiplied by one number."""

    def __init__(self, embedding: GroupedEmbedding, scale: torch.Tensor) -> None:
        super().__init__()
        self.embedding, self.weight = embedding, embedding.weight
        self.num_embeddings, self.embedding_dim = embedding.num_embeddings, embedding.embedding_dim
        self._scale = scale.to(embedding.weight.dtype)

    def __call__(self, input: torch.Tensor) -> torch.Tensor:
        return self.embedding(input) * self._scale


def _expert_layers(model: PreTrainedModel, left: dict[str, Weight]) -> dict[str, tuple[Weight, Weight | None]]:
    """Matrix and bias of every layer of every expert that the files have apart."""
    layers: dict[str, tuple[Weight, Weight | None]] = {}
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


def _taken(left: dict[str, Weight], name: str, shape: tuple[int, ...]) -> Weight:
    weight = left.pop(name, None)
    if weight is None:
        raise ConfigError(f"its weights lack {name}")
    if tuple(weight.shape) != tuple(shape):
        raise ConfigError(
            f"its weights do not fit its metadata: {name} {tuple(weight.shape)} instead of {tuple(shape)}"
        )
    return weight


def with_dense_embedding(model: PreTrainedModel, weights: Mapping[str, Weight], target: Target) -> dict[str, Weight]:
    """The same weights for a device, where rows are looked up as they are, and a head that is tied reads them."""
    embedding = model.get_input_embeddings()
    name = next(f"{name}.weight" for name, module in model.named_modules() if module is embedding)
    weight = weights.get(name)
    if not target.by_triton or not isinstance(weight, PackedWeight):
        return dict(weights)
    return {**weights, name: DenseWeight(name, weight.shape, partial(weight.dense, target.dtype))}


def num_bytes_of(weights: Mapping[str, Weight], target: Target) -> int:
    """The bytes that a model of these weights takes."""
    packed = [each for each in weights.values() if isinstance(each, PackedWeight)]
    dense = [each for each in weights.values() if isinstance(each, DenseWeight)]
    per_number = [each.num_bytes(target.dtype) for each in dense]
    if target.by_triton:
        return sum(per_number) + sum(each.num_device_bytes() for each in packed)
    if target.is_packed:
        return sum(per_number) + sum(each.num_bytes(target.dtype) for each in packed)
    return sum(per_number) + sum(each.shape[0] * each.shape[1] * target.dtype.itemsize for each in packed)
