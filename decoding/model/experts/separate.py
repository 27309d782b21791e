"""A mixture's experts with a layer of their own each, so that each may be packed, and the seam by which modelling code
calls them.

"gander" is registered as an implementation of experts. Knows no router and no kernels. Invariant: experts are added in
their order, whatever other rows there are; those that were not adopted are computed by the model's own code.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import nn
from transformers.integrations.moe import ExpertsInterface

from decoding.model.experts.gates import Gate, GateKernel
from decoding.model.replacing.replacer import Place, Rule

# Shape suffixes: M rows, E model width, K experts of a row.
SERVING, CHILD = "gander", "separate"


class ExpertsRunner(Protocol):
    """Runs all chosen experts at once."""

    def __call__(self, rows_ME: torch.Tensor, chosen_MK: torch.Tensor, shares_MK: torch.Tensor) -> torch.Tensor: ...


@dataclass(frozen=True, slots=True)
class ExpertLayers:
    gate: nn.Module
    up: nn.Module
    down: nn.Module


class SeparateExperts(nn.Module):
    """What transformers' modules compute whose experts share one tensor of three dimensions.

    gate_kernel: computes `apply_gate`; None if no kernel does. runner: set once layers have their last form."""

    def __init__(self, experts: Sequence[ExpertLayers], apply_gate: Gate, gate_kernel: GateKernel | None) -> None:
        super().__init__()
        self.gates = nn.ModuleList(each.gate for each in experts)
        self.ups = nn.ModuleList(each.up for each in experts)
        self.downs = nn.ModuleList(each.down for each in experts)
        self.gate_kernel = gate_kernel
        self.runner: ExpertsRunner | None = None
        self._apply_gate = apply_gate

    def forward(self, rows_ME: torch.Tensor, chosen_MK: torch.Tensor, shares_MK: torch.Tensor) -> torch.Tensor:
        run = self.one_by_one if self.runner is None else self.runner
        return run(rows_ME, chosen_MK, shares_MK)

    def one_by_one(self, rows_ME: torch.Tensor, chosen_MK: torch.Tensor, shares_MK: torch.Tensor) -> torch.Tensor:
        total_ME = torch.zeros_like(rows_ME)
        for expert in sorted(set(chosen_MK.flatten().tolist())):
            if not 0 <= expert < len(self.gates):  # a number beyond them means none
                continue
            places, ranks = torch.where(chosen_MK == expert)
            chosen_rows = rows_ME[places]
            inner = self._apply_gate(self.gates[expert](chosen_rows), self.ups[expert](chosen_rows))
            outputs = self.downs[expert](inner) * shares_MK[places, ranks, None]
            total_ME.index_add_(0, places, outputs.to(total_ME.dtype))
        return total_ME


def is_mixture(place: Place) -> bool:
    """Whether a module is a mixture's experts in transformers' modelling code."""
    module = place.module
    return type(module).__name__.endswith("Experts") and not isinstance(module, SeparateExperts)


def serve_here(place: Place, _seam: str = SERVING) -> None:
    """Have a mixture of experts call this seam."""
    module: Any = place.module
    module.config._experts_implementation = SERVING


SERVED = Rule(
    "mixtures of experts served",
    lambda place: is_mixture(place) and getattr(place.module, "config", None) is not None,
    lambda _place: [SERVING],
    put=serve_here,
)


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
