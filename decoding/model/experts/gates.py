"""How an expert's gate joins the other half of its inner numbers, and the kernels that do.

A kernel is used if a trial on random numbers shows that the model's own function computes the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

import numpy as np
import torch
from torch import nn

from decoding.kernels.cpu.experts import clamp_gate_floats, clamp_gate_halves
from decoding.kernels.cpu.program import Call, one_thread
from decoding.model.layers.activations import FusedSilu

# Shape suffixes: M rows, N inner width.
TRIAL_SHAPE, TRIAL_SCALE = (8, 64), 8.0  # numbers beyond any limit
TOLERANCES = {torch.float32: 1e-5, torch.bfloat16: 2e-2}
Gate = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]  # of the gate's and the other half's outputs


class GateKernel(Protocol):
    def call(self, source: int, other: int, target: int, width: int) -> Call:
        """A program's call. source: the gate's numbers; other: the other half's."""


class ClampedGate:
    """gpt-oss's: (1 + other) * gate * sigmoid(alpha * gate), with gate and other limited."""

    def __init__(self, alpha: float, limit: float, dtype: torch.dtype) -> None:
        self._share = clamp_gate_halves if dtype == torch.bfloat16 else clamp_gate_floats
        self._constants = [int(np.float32(number).view(np.uint32)) for number in (alpha, limit)]

    def call(self, source: int, other: int, target: int, width: int) -> Call:
        return Call(self._share, (source, target, 0, 0, width, other, *self._constants))

    @staticmethod
    def formula(gate: torch.Tensor, other: torch.Tensor, alpha: float, limit: float) -> torch.Tensor:
        gate, other = gate.clamp(max=limit), other.clamp(-limit, limit)
        return (other + 1) * gate * torch.sigmoid(gate * alpha)


def gate_of(experts: nn.Module) -> Gate:
    """transformers' own function, which takes both halves as one tensor, one after the other or alternating."""
    own: Any = experts
    if own.is_concatenated:
        return lambda gate, other: own._apply_gate(torch.cat((gate, other), -1))
    return lambda gate, other: own._apply_gate(torch.stack((gate, other), -1).flatten(-2))


def kernel_of(experts: nn.Module, dtype: torch.dtype) -> GateKernel | None:
    """The kernel for transformers' function; None if it computes something else."""
    gate_MN, other_MN = (torch.randn(2, *TRIAL_SHAPE, generator=torch.Generator().manual_seed(0)) * TRIAL_SCALE).to(
        dtype
    )
    with torch.inference_mode(), one_thread():
        expected_MN = gate_of(experts)(gate_MN, other_MN)
        for found_MN, kernel in _candidates(experts, gate_MN, other_MN):
            if torch.allclose(found_MN, expected_MN, rtol=TOLERANCES[dtype], atol=TOLERANCES[dtype]):
                return kernel
    return None


def _candidates(
    experts: nn.Module, gate_MN: torch.Tensor, other_MN: torch.Tensor
) -> Iterator[tuple[torch.Tensor, GateKernel]]:
    own: Any = experts
    yield nn.functional.silu(gate_MN) * other_MN, FusedSilu(gate_MN.dtype)
    alpha, limit = getattr(own, "alpha", None), getattr(own, "limit", None)
    if isinstance(alpha, float) and isinstance(limit, float):
        yield ClampedGate.formula(gate_MN, other_MN, alpha, limit), ClampedGate(alpha, limit, gate_MN.dtype)
