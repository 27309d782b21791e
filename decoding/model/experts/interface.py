"""The seam into transformers for mixtures of experts: the function that unmodified modelling code calls.

"gander" is registered as an implementation of experts. Knows no kernels. Invariant: experts that were not adopted are
computed by the model's own code.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers.integrations.moe import ExpertsInterface

from decoding.model.experts.separate import SeparateExperts

SERVING, CHILD = "gander", "separate"


def use_experts(model: nn.Module) -> bool:
    """Have mixtures of experts call this seam; return whether there are any."""
    has_experts = False
    for module in model.modules():
        config = getattr(module, "config", None)
        if type(module).__name__.endswith("Experts") and config is not None:
            config._experts_implementation = SERVING
            has_experts = True
    return has_experts


def adopt(module: nn.Module, experts: SeparateExperts) -> None:
    """Have `experts` compute what transformers' module is called for, whose own parameters are dropped."""
    for name, _ in list(module.named_parameters(recurse=False)):
        delattr(module, name)
    attach(module, experts)
    own: Any = module
    own.config._experts_implementation = SERVING


def attach(module: nn.Module, experts: nn.Module) -> None:
    """Have `experts` compute what transformers' module is called for, instead of those that did before."""
    module.add_module(CHILD, experts)


def experts_of(module: nn.Module) -> SeparateExperts | None:
    """Those that compute what the module is called for; None if it does so itself, or others do."""
    experts = module._modules.get(CHILD)
    return experts if isinstance(experts, SeparateExperts) else None


def own_forward(module: nn.Module, *arguments: Any) -> torch.Tensor:
    """The model's own computation, expert by expert, which works in any dtype."""
    forward: Any = type(module).forward
    result: torch.Tensor = forward.__wrapped__(module, *arguments)
    return result


def _serve(module: nn.Module, *arguments: torch.Tensor) -> torch.Tensor:
    experts = module._modules.get(CHILD)
    result: torch.Tensor = own_forward(module, *arguments) if experts is None else experts(*arguments)
    return result


ExpertsInterface.register(SERVING, _serve)
