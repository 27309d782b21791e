"""Records the inputs of some of a model's layers during its forward, for draft heads to read, and for embeddings.

Uses hooks on unmodified modelling code. Knows nothing of heads.
Invariant: a tap holds the features of the last forward only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.utils.hooks import RemovableHandle

from decoding.errors import ModelRefused

Seen = dict[int, torch.Tensor]

# Shape suffixes: L layers, N tokens and padding, K tokens asked for, E model width, F all features of a token.


class FeatureTap:
    """layers: ascending; layer i stands for its input, and i = num_layers for the last layer's output.

    seen: by layer, [N, E] of the last forward. Raises ModelRefused if the model's layers cannot be found.
    """

    def __init__(self, model: nn.Module, num_layers: int, layers: Sequence[int]) -> None:
        blocks = decoder_layers(model, num_layers)
        self._layers = tuple(layers)
        self.seen: Seen = {}
        self._hooks: list[RemovableHandle] = []
        for layer in layers:
            if layer < num_layers:
                hook = blocks[layer].register_forward_pre_hook(self._note_input(layer), with_kwargs=True)
            else:
                hook = blocks[-1].register_forward_hook(self._note_output(layer))
            self._hooks.append(hook)

    def close(self) -> None:
        """Record nothing any more."""
        for hook in self._hooks:
            hook.remove()

    def rows(self, rows_K: torch.Tensor) -> torch.Tensor:
        """[K, F]: the features of some tokens of the last forward. rows_K: int64, ascending, on the model's device."""
        seen = [self.seen[layer] for layer in self._layers]
        if len(rows_K) < len(seen[0]):
            seen = [each_NE[rows_K] for each_NE in seen]
        return torch.cat(seen, dim=-1)

    def see(self, hidden_LNE: torch.Tensor) -> None:
        """Record a forward that did not call the modules. hidden_LNE: each layer's input, then the last one's
        output."""
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


class LastHidden:
    """A model's last hidden states: those of its last layer, which `tap` records, through the norm before the output.
    width: of one."""

    def __init__(self, tap: FeatureTap, norm: nn.Module, width: int) -> None:
        self._tap, self._norm = tap, norm
        self.width = width

    def rows(self, first: int, end: int) -> NDArray[np.float32]:
        """float32 [K, E]: of the last forward's tokens from `first` to before `end`."""
        seen = next(iter(self._tap.seen.values()))
        with torch.inference_mode():
            hidden_KE: torch.Tensor = self._norm(self._tap.rows(torch.arange(first, end, device=seen.device)))
            return hidden_KE.float().cpu().numpy()

    @torch.no_grad()
    def all_rows(self) -> torch.Tensor:
        """[N, E]: of all tokens of the last forward, on the model's device."""
        hidden_NE: torch.Tensor = self._norm(next(iter(self._tap.seen.values())))
        return hidden_NE


def decoder_layers(model: nn.Module, num_layers: int) -> nn.ModuleList:
    """Raises ModelRefused if there is no list of so many layers."""
    blocks = next((each for each in model.modules() if _is_list_of(each, num_layers)), None)
    if not isinstance(blocks, nn.ModuleList):
        raise ModelRefused(f"{type(model).__name__} has no list of {num_layers} layers that a head could read from")
    return blocks


def _is_list_of(module: nn.Module, num_layers: int) -> bool:
    return isinstance(module, nn.ModuleList) and len(module) == num_layers
