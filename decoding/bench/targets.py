"""Targets for measurements: the model itself, one widened to the cost of a larger model, one with random weights.

A widened model computes the model's function at a larger cost: it has extra decoder layers after the model's own, whose
output projections are zero, so that each adds exactly nothing to its input.
Invariant: logits, hence replies and acceptance, are those of the narrow model.
"""

from __future__ import annotations

import copy

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from decoding.config import EngineConfig
from decoding.model.checkpoint import resolve
from decoding.model.target_model import TargetModel

DEFAULT_MILLIONS = 32  # millions of parameters, with which gosling's draft model costs an eighth of a step
NUM_LAYERS = 12  # as in GPT-2 small


def widen(model: PreTrainedModel, num_parameters: int) -> PreTrainedModel:
    """Add layers to a Llama-like `model`, in place, until it has `NUM_LAYERS` and about `num_parameters`.

    The extra layers have attention of the model's own shape; the width of their MLPs is chosen to reach the number.
    Raises ValueError if the model is that large already.
    """
    layers = model.model.layers
    num_extra = NUM_LAYERS - len(layers)
    missing = num_parameters - model.num_parameters()
    if num_extra < 1 or missing < num_extra * _num_weights(layers[0]):
        raise ValueError(f"a model of {len(layers)} layers cannot be widened to {num_parameters} parameters")
    config = copy.deepcopy(model.config)
    per_layer = missing / num_extra - _num_weights(layers[0].self_attn)
    config.intermediate_size = round(per_layer / (3 * config.hidden_size))
    for index in range(len(layers), NUM_LAYERS):
        layer = type(layers[0])(config, index).to(model.device, model.dtype)
        torch.nn.init.zeros_(layer.self_attn.o_proj.weight)
        torch.nn.init.zeros_(layer.mlp.down_proj.weight)
        layers.append(layer)
    model.config.num_hidden_layers = NUM_LAYERS
    return model.eval()


def widen_evenly(model: PreTrainedModel, num_parameters: int) -> PreTrainedModel:
    """A widened new model whose layers all have the same shape, as a checkpoint in a folder requires. The MLPs of the
    model's own layers are padded with zeros, so logits are those of the narrow model up to the order of sums.

    Raises ValueError if the model is that large already.
    """
    own, config = model.model.layers, copy.deepcopy(model.config)
    per_layer = (num_parameters - model.num_parameters()) / NUM_LAYERS
    per_layer += (sum(map(_num_weights, own)) - NUM_LAYERS * _num_weights(own[0].self_attn)) / NUM_LAYERS
    config.intermediate_size = round(per_layer / (3 * config.hidden_size))
    if len(own) >= NUM_LAYERS or config.intermediate_size < own[0].mlp.up_proj.out_features:
        raise ValueError(f"a model of {len(own)} layers cannot be widened to {num_parameters} parameters")
    config.num_hidden_layers = NUM_LAYERS
    wide = type(model)(config).to(model.device, model.dtype)
    state = model.state_dict()
    with torch.no_grad():
        for name, weight in wide.state_dict().items():
            if name in state:
                weight.zero_()[tuple(map(slice, state[name].shape))] = state[name]
            elif name.endswith(("o_proj.weight", "down_proj.weight")):
                weight.zero_()
    wide.generation_config = copy.deepcopy(model.generation_config)
    return wide.eval()


def load_random(config: EngineConfig) -> TargetModel:
    """The architecture that `config` names with random weights, whose text no drafter can predict."""
    config, folder = resolve(config)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder), attn_implementation="eager")
    return TargetModel.from_model(model.to(config.device, getattr(torch, config.dtype)).eval(), config)


def load_widened(config: EngineConfig, num_parameters: int) -> TargetModel:
    """The model that `config` names, on its device and in its dtype, widened to about `num_parameters` unless 0."""
    config, folder = resolve(config)
    dtype = getattr(torch, config.dtype)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="eager").eval()
    model = model.to(config.device)
    return TargetModel.from_model(widen(model, num_parameters) if num_parameters else model, config)


def _num_weights(module: torch.nn.Module) -> int:
    return sum(weight.numel() for weight in module.parameters())
