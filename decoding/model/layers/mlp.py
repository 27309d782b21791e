"""What a decoder layer computes behind its second norm: a gated MLP, or a mixture of experts.

Knows nothing of attention, nor of how MLPs are found. A row is a token. Invariant: calls write only the target and
rooms.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import nn

from decoding.kernels.cpu.program import MOST_ROWS, SOURCE, TARGET, Call, Program, Rooms
from decoding.model.experts.cpu_experts import FusedExperts
from decoding.model.experts.router import FusedRouter
from decoding.model.layers.activations import FusedSilu
from decoding.weights.matrix import Matrix


class Mlp(Protocol):
    @property
    def few_rows(self) -> int: ...

    def fits(self, width: int) -> bool:
        """Whether its parts fit to each other and to rows of this width, so that no call reads outside its buffers."""

    def phases(self, source: int, target: int, rooms: Rooms) -> list[list[Call]]:
        """A program's calls between two addresses."""


@dataclass(frozen=True, slots=True)
class GatedMlp:
    gate: Matrix
    up: Matrix
    activation: FusedSilu
    down: Matrix

    @property
    def linears(self) -> tuple[Matrix, ...]:
        return (self.gate, self.up, self.down)

    @property
    def few_rows(self) -> int:
        return min(MOST_ROWS, *(each.few_rows for each in self.linears))

    def fits(self, width: int) -> bool:
        inner = self.gate.shape[0]
        return [each.shape for each in self.linears] == [(inner, width), (inner, width), (width, inner)]

    def phases(self, source: int, target: int, rooms: Rooms) -> list[list[Call]]:
        width = self.up.shape[0]
        gate, up = rooms.numbers("gate", width), rooms.numbers("up", width)
        return [
            *linear_phases(rooms, source, (self.gate, gate), (self.up, up)),
            [self.activation.call(gate, up, gate, width)],
            *linear_phases(rooms, gate, (self.down, target)),
        ]


@dataclass(frozen=True, slots=True)
class Mixture:
    """A router and the experts that it chooses of."""

    router: FusedRouter
    experts: FusedExperts

    @property
    def few_rows(self) -> int:
        return MOST_ROWS

    def fits(self, width: int) -> bool:
        routed = (self.router.num_experts, self.router.width)
        return routed == (self.experts.num_experts, self.experts.width) and self.router.width == width

    def phases(self, source: int, target: int, rooms: Rooms) -> list[list[Call]]:
        calls, logits = self.experts.calls(self.router.num_ranks), rooms.numbers("router", self.router.num_experts)
        return [
            *self.router.phases(source, logits, calls.chosen, calls.shares),
            *calls.phases(source, target),
        ]


def linear_phases(rooms: Rooms, source: int, *layers: tuple[Matrix, int]) -> list[list[Call]]:
    """Calls of matrices that share one input, and what prepares it. layers: each with the address that it writes to."""
    ready = list(dict.fromkeys(call for matrix, _ in layers for call in matrix.ready(source, rooms)))
    products = [matrix.call(source, target, rooms) for matrix, target in layers]
    return [ready, products] if ready else [products]


class FusedMlp(nn.Module):
    """Replaces `layer`, whose parts are `mlp`, for rows of `width` numbers."""

    def __init__(self, layer: nn.Module, mlp: GatedMlp, rooms: Rooms, width: int) -> None:
        super().__init__()
        self.layer = layer
        self._rooms = rooms  # which hold what the program writes
        self._width, self._most_numbers = width, mlp.few_rows * width
        phases = mlp.phases(0, 0, rooms)
        self._program = program = Program(phases)
        calls = [call for phase in phases for call in phase]
        self._first = [program.fields_of(call) for call in calls if call.fields[SOURCE] == 0]
        self._last = program.fields_of(calls[-1])

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:  # skips nn.Module's hooks, which cost microseconds
        if hidden.numel() > self._most_numbers:
            result: torch.Tensor = self.layer(hidden)
            return result
        hidden = hidden.contiguous()
        result = torch.empty_like(hidden)
        self._program.begin(hidden.numel() // self._width)
        for fields in self._first:
            fields[SOURCE] = hidden.data_ptr()
        self._last[TARGET] = result.data_ptr()
        self._program.run(torch.get_num_threads())
        return result
