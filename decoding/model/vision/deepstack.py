"""What a model's first layers are given of pictures beside their rows: DeepStack (arXiv 2406.04334).

Uses hooks on unmodified modelling code, or on what stands for its layers. Invariant: a step without pictures is run as
if there were none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from decoding.cache.batch import EmbeddedRows
from decoding.model.features import decoder_layers

# Shape suffixes: N rows of a picture, M tokens, E width of the text model, F a row's embedding and all that is added.


class Deepstack:
    """Adds to the hidden states that each of the first layers gives for a picture's tokens the next E numbers of their
    rows, [N, F], whose first E are embeddings. Raises ModelRefused if the model's layers cannot be found."""

    def __init__(self, model: nn.Module, num_layers: int, width: int, depth: int) -> None:
        self._width = width
        self._rows: Sequence[EmbeddedRows] = ()
        for number, layer in enumerate(decoder_layers(model, num_layers)[:depth], start=1):
            layer.register_forward_hook(self._adding(number))

    @contextmanager
    def running(self, rows: Sequence[EmbeddedRows]) -> Iterator[None]:
        """Inside the block, the model runs a step with these rows of pictures."""
        self._rows = rows
        try:
            yield
        finally:
            self._rows = ()

    def _adding(self, number: int) -> Callable[..., torch.Tensor | None]:
        part = slice(number * self._width, (number + 1) * self._width)

        def add(_layer: nn.Module, _inputs: Any, hidden_1ME: torch.Tensor) -> torch.Tensor | None:
            if not self._rows:
                return None
            hidden_1ME = hidden_1ME.clone()
            for first, rows_NF in self._rows:
                hidden_1ME[0, first : first + len(rows_NF)] += rows_NF[:, part]
            return hidden_1ME

        return add
