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

from decoding.errors import PartRefused
from decoding.model.experts.gates import gate_of, kernel_of
from decoding.model.experts.separate import ExpertLayers, SeparateExperts, adopt, own_forward
from decoding.model.replacing.replacer import Calls, Place, Rule, check_same
from decoding.weights.matrix import fits_panels

# Shape suffixes: X experts, M rows, E model width, K experts of a row, O outputs, I input width, N inner width.
TRIAL_ROWS, TRIAL_RANKS = 3, 2
NO_KERNEL = "no kernel here computes their gate, or multiplies their widths"
Run = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]  # of rows, their experts and shares


def separating_rule(dtype: torch.dtype, lacks: str) -> Rule:
    """Gives each expert layers of its own, views of its weights. lacks: of panels, which multiply them."""
    return Rule(
        "mixtures of experts separated",
        lambda place: has_known_form(place.module),
        lambda place: [_read(place.module, dtype)],
        _check,
        lambda place, experts: adopt(place.module, experts),
        lacks=lacks,
    )


def has_known_form(module: nn.Module) -> bool:
    """Whether the module has gates, and its parameters are those that transformers describes by these attributes."""
    own: Any = module
    if not getattr(own, "has_gate", False) or getattr(own, "has_post_expert_norm", False):
        return False
    names = {"gate_up_proj", "down_proj"}
    if own.has_bias:
        names |= {f"{name}_bias" for name in names}
    return {name for name, _ in module.named_parameters(recurse=False)} == names


def _read(module: nn.Module, dtype: torch.dtype) -> SeparateExperts:
    own: Any = module
    kernel = kernel_of(module, dtype)
    weights = [own.gate_up_proj.detach(), own.down_proj.detach()]
    if own.is_transposed:
        weights = [each.transpose(1, 2) for each in weights]
    if kernel is None or not all(each.dtype == dtype and fits_panels(each[0]) for each in weights):
        raise PartRefused(NO_KERNEL)
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


def _check(experts: SeparateExperts, place: Place, _calls: Calls) -> None:
    down: Any = experts.downs[0]
    own = partial(own_forward, place.module)
    check_experts(own, experts.one_by_one, len(experts.gates), down.weight.shape[0], down.weight)


def check_experts(own: Run, found: Run, num_experts: int, width: int, like: torch.Tensor) -> None:
    """Try a few random rows, of the dtype and on the device of `like`. Raises PartRefused where they have other results
    than by the model's own code."""
    generator = torch.Generator().manual_seed(0)
    num_ranks = min(TRIAL_RANKS, num_experts)
    rows_ME = torch.randn(TRIAL_ROWS, width, generator=generator).to(like)
    chosen_MK = torch.stack([torch.randperm(num_experts, generator=generator)[:num_ranks] for _ in range(TRIAL_ROWS)])
    shares_MK = torch.rand(TRIAL_ROWS, num_ranks, generator=generator).to(like)
    given = rows_ME, chosen_MK.to(like.device), shares_MK
    with torch.inference_mode():
        check_same(partial(own, *given), partial(found, *given))
