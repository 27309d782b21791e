"""A mixture's experts with a layer of their own each, so that each may be packed.

Knows no router. Invariant: a row's result does not depend on the other rows: experts are added in their order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import nn

from decoding.model.experts.gates import Gate, GateKernel

# Shape suffixes: M rows, E model width, K experts of a row.


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
