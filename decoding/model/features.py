"""What goes into some of a model's layers, seen while its own forward runs: what a draft head reads.

Hooks on unmodified modelling code. Knows nothing of heads.
Invariant: a tap holds the features of the last forward alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from decoding.errors import ModelRefused

Seen = dict[int, torch.Tensor]

# Shape suffixes: N model rows, K rows asked for, E model width, F all features of a row side by side.


class FeatureTap:
    """layers: ascending, counted by what goes into them; their number itself stands for what leaves the last.

    seen: by layer, [N, E] of the last forward. Raises ModelRefused where the layers cannot be told.
    """

    def __init__(self, model: nn.Module, num_layers: int, layers: Sequence[int]) -> None:
        blocks = next((each for each in model.modules() if _is_list_of(each, num_layers)), None)
        if not isinstance(blocks, nn.ModuleList):
            raise ModelRefused(f"{type(model).__name__} has no list of {num_layers} layers that a head could read from")
        self._layers = tuple(layers)
        self.seen: Seen = {}
        for layer in layers:
            if layer < num_layers:
                blocks[layer].register_forward_pre_hook(self._note_input(layer), with_kwargs=True)
            else:
                blocks[-1].register_forward_hook(self._note_output(layer))

    def rows(self, rows_K: torch.Tensor) -> torch.Tensor:
        """[K, F] of the last forward. rows_K: int64, ascending, on the model's device."""
        seen = [self.seen[layer] for layer in self._layers]
        if len(rows_K) < len(seen[0]):
            seen = [each_NE[rows_K] for each_NE in seen]
        return torch.cat(seen, dim=-1)

    def see(self, hidden_LNE: torch.Tensor) -> None:
        """What goes into each layer, and what leaves the last, of a forward that ran without the modules."""
        self.seen = {layer: hidden_LNE[layer] for layer in self._layers}

    def _note_input(self, layer: int) -> Callable[..., None]:
        def note(_block: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
            self._note(layer, inputs[0] if inputs else named["hidden_states"])

        return note

    def _note_output(self, layer: int) -> Callable[..., None]:
        def note(_block: nn.Module, _inputs: Any, output: Any) -> None:
            self._note(layer, output[0] if isinstance(output, tuple) else output)

        return note

    def _note(self, layer: int, hidden_1NE: torch.Tensor) -> None:
        if hidden_1NE.dim() != 3:
            raise ModelRefused(f"what goes into its layers has {hidden_1NE.dim()} dimensions; a head reads vectors")
        self.seen[layer] = hidden_1NE[0]


def _is_list_of(module: nn.Module, num_layers: int) -> bool:
    return isinstance(module, nn.ModuleList) and len(module) == num_layers
