"""A mixture's experts with a layer of their own each, so that each may be packed.

Knows no router. Invariant: a row's result does not depend on the other rows: experts are added in their order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

# Shape suffixes: M rows, E model width, K experts of a row.
Gate = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]  # of the gate's and the other half's outputs


@dataclass(frozen=True, slots=True)
class ExpertLayers:
    gate: nn.Module
    up: nn.Module
    down: nn.Module


class SeparateExperts(nn.Module):
    """Replaces transformers' modules whose experts share one tensor of three dimensions."""

    def __init__(self, experts: Sequence[ExpertLayers], apply_gate: Gate, config: Any) -> None:
        super().__init__()
        self.gates = nn.ModuleList(each.gate for each in experts)
        self.ups = nn.ModuleList(each.up for each in experts)
        self.downs = nn.ModuleList(each.down for each in experts)
        self.config = config  # as transformers' own experts have it
        self._apply_gate = apply_gate

    def forward(self, rows_ME: torch.Tensor, chosen_MK: torch.Tensor, shares_MK: torch.Tensor) -> torch.Tensor:
        total_ME = torch.zeros_like(rows_ME)
        for expert in sorted(set(chosen_MK.flatten().tolist())):
            places, ranks = torch.where(chosen_MK == expert)
            chosen_rows = rows_ME[places]
            inner = self._apply_gate(self.gates[expert](chosen_rows), self.ups[expert](chosen_rows))
            outputs = self.downs[expert](inner) * shares_MK[places, ranks, None]
            total_ME.index_add_(0, places, outputs.to(total_ME.dtype))
        return total_ME


def gate_of(experts: nn.Module) -> Gate:
    """How transformers' module joins the two halves."""
    own: Any = experts
    if hasattr(own, "alpha"):  # gpt-oss, whose own function takes halves that alternate

        def clamped(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
            gate, up = gate.clamp(max=own.limit), up.clamp(-own.limit, own.limit)
            return (up + 1) * gate * torch.sigmoid(gate * own.alpha)

        return clamped
    return lambda gate, up: own.act_fn(gate) * up
