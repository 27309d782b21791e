"""A gated MLP that runs a few tokens in one call, in a layer that is not fused as a whole: one that carries a state.

Knows nothing of how such MLPs are found. Invariant: there is one copy of the weights; with many rows the module that it
replaces runs.
"""

from __future__ import annotations

import torch
from torch import nn

from decoding.kernels.cpu.program import SOURCE, TARGET, Program, Rooms
from decoding.model.layers.mlp import GatedMlp


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
