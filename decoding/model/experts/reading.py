"""Reads what a model's experts compute, as linear layers of each expert, and checks it against the model's own code.

Knows no kernels. Invariant: experts whose trial differs from the model's own, or that no kernel computes, stay as they
are.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

from decoding.model.experts.gates import gate_of, kernel_of
from decoding.model.experts.interface import adopt, own_forward
from decoding.model.experts.separate import ExpertLayers, SeparateExperts
from decoding.model.refusal import is_device_error, sentence
from decoding.weights.matrix import fits_panels

# Shape suffixes: X experts, M rows, E model width, K experts of a row, O outputs, I input width, N inner width.
TRIAL_ROWS, TRIAL_RANKS = 3, 2
TOLERANCES = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 5e-2}  # as a share of the largest number
Run = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]  # of rows, their experts and shares


def separate_experts(model: nn.Module, dtype: torch.dtype) -> int:
    """Give each expert of `model` layers of its own, views of its weights, where that computes the same; return how
    many mixtures were separated."""
    num_separated = 0
    for module in list(model.modules()):
        experts = _read(module, dtype) if has_known_form(module) else None
        if experts is not None and _is_same(module, experts):
            adopt(module, experts)
            num_separated += 1
    return num_separated


def has_known_form(module: nn.Module) -> bool:
    """Whether the module has gates, and its parameters are those that transformers describes by these attributes."""
    own: Any = module
    if not getattr(own, "has_gate", False) or getattr(own, "has_post_expert_norm", False):
        return False
    names = {"gate_up_proj", "down_proj"}
    if own.has_bias:
        names |= {f"{name}_bias" for name in names}
    return {name for name, _ in module.named_parameters(recurse=False)} == names


def _read(module: nn.Module, dtype: torch.dtype) -> SeparateExperts | None:
    own: Any = module
    kernel = kernel_of(module, dtype)
    weights = [own.gate_up_proj.detach(), own.down_proj.detach()]
    if own.is_transposed:
        weights = [each.transpose(1, 2) for each in weights]
    if kernel is None or not all(each.dtype == dtype and fits_panels(each[0]) for each in weights):
        return None
    both_XOI, down_XEN = weights
    biases = (own.gate_up_proj_bias.detach(), own.down_proj_bias.detach()) if own.has_bias else (None, None)
    halves = _halves(own, both_XOI)
    bias_halves = (None, None) if biases[0] is None else _halves(own, biases[0])
    parts = [(halves[0], bias_halves[0]), (halves[1], bias_halves[1]), (down_XEN, biases[1])]
    layers = [
        ExpertLayers(*(_linear(weight[expert], None if bias is None else bias[expert]) for weight, bias in parts))
        for expert in range(len(down_XEN))
    ]
    return SeparateExperts(layers, gate_of(module), kernel)


def _halves(own: Any, both_XO: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The gate's outputs and the other half's."""
    if own.is_concatenated:
        gate, other = both_XO.chunk(2, 1)
        return gate, other
    return both_XO[:, ::2], both_XO[:, 1::2]


def _linear(weight_OI: torch.Tensor, bias_O: torch.Tensor | None) -> nn.Linear:
    with torch.device("meta"):
        linear = nn.Linear(weight_OI.shape[1], weight_OI.shape[0], bias_O is not None)
    linear.weight = nn.Parameter(weight_OI, requires_grad=False)
    if bias_O is not None:
        linear.bias = nn.Parameter(bias_O, requires_grad=False)
    return linear


def _is_same(module: nn.Module, experts: SeparateExperts) -> bool:
    down: Any = experts.downs[0]
    own = partial(own_forward, module)
    return why_other_experts(own, experts.one_by_one, len(experts.gates), down.weight.shape[0], down.weight) is None


def why_other_experts(own: Run, found: Run, num_experts: int, width: int, like: torch.Tensor) -> str | None:
    """Why a few random rows, of the dtype and on the device of `like`, have other results than by the model's own code;
    None if they have the same."""
    generator = torch.Generator().manual_seed(0)
    num_ranks = min(TRIAL_RANKS, num_experts)
    rows_ME = torch.randn(TRIAL_ROWS, width, generator=generator).to(like)
    chosen_MK = torch.stack([torch.randperm(num_experts, generator=generator)[:num_ranks] for _ in range(TRIAL_ROWS)])
    shares_MK = torch.rand(TRIAL_ROWS, num_ranks, generator=generator).to(like)
    given = rows_ME, chosen_MK.to(like.device), shares_MK
    with torch.inference_mode():
        return why_other_results(partial(own, *given), partial(found, *given))


def why_other_results(own: Callable[[], torch.Tensor], found: Callable[[], torch.Tensor]) -> str | None:
    """Why two computations have different results; None if they have the same up to rounding. Raises what a device
    raises."""
    try:
        expected, result = own(), found()
    except Exception as error:  # a kernel that does not compile, or modelling code that wants other arguments
        if is_device_error(error):
            raise
        return sentence(error)
    if expected.shape != result.shape:
        return f"it gives results of shape {tuple(result.shape)} instead of {tuple(expected.shape)}"
    difference = float((result - expected).abs().max() / expected.abs().max())
    is_same = difference <= TOLERANCES[result.dtype]
    return None if is_same else f"it gives results that differ by {difference:.2g} of the largest"
