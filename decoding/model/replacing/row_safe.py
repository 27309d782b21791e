"""Makes activations and rotary embeddings independent of the number of tokens, for exact arithmetic on the CPU.

torch computes the end of an array, and of each thread's share of it, with other instructions than the rest,
which may round differently. So activations run on whole vectors only, and rotary tables are computed once.
Invariant: a token's result has the same bits in every batch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from decoding.errors import PartRefused
from decoding.model.replacing.replacer import Calls, Place, Replacements, Rule

# Shape suffixes: L positions in the table, M tokens, D rotary width.
UNROLLED_BYTES = 128  # torch's loops take two of the widest vectors at a time
ELEMENTS_PER_THREAD = 32768  # torch splits longer arrays among its threads (at::internal::GRAIN_SIZE)
FIRST_TABLE_LEN = 4096
ACTIVATION_MODULES = (nn.SiLU, nn.GELU, nn.Tanh, nn.Sigmoid, nn.Softplus, nn.Mish, nn.ELU)
EXACT_MODULES = (nn.ReLU, nn.Identity)
OTHER_INTERFACE = "they do not give cosines and sines of positions alone"
FUNCTIONS = (
    F.gelu,
    F.softplus,
    F.sigmoid,
    torch.sigmoid,
    torch.Tensor.sigmoid,
    torch.exp,
    torch.Tensor.exp,
    torch.log,
    torch.Tensor.log,
    torch.tanh,
    torch.Tensor.tanh,
)


class RowSafeActivation(nn.Module):
    """Replaces an elementwise activation module."""

    def __init__(self, activation: nn.Module) -> None:
        super().__init__()
        self.activation = activation

    def __call__(self, values: torch.Tensor) -> torch.Tensor:
        return on_whole_vectors(self.activation, values)


def row_safe(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Replaces an elementwise function that modelling code calls by name."""

    def on_vectors(input: torch.Tensor, *others: Any, **options: Any) -> torch.Tensor:
        return on_whole_vectors(lambda values: function(values, *others, **options), input)

    return on_vectors


def on_whole_vectors(function: Callable[[torch.Tensor], torch.Tensor], values: torch.Tensor) -> torch.Tensor:
    """An elementwise function of these values, whose last ones are no array's end."""
    count = values.numel()
    padded = safe_length(count, UNROLLED_BYTES // values.element_size())
    if padded == count and values.is_contiguous():
        return function(values)
    flat = values.new_zeros(padded)
    flat[:count] = values.reshape(-1)
    return function(flat)[:count].view(values.shape)


class RotaryTable(nn.Module):
    """Replaces a rotary embedding whose cosines and sines depend on the position alone, or on a token's positions in
    time, height and width, each number on one of them."""

    def __init__(self, rotary: nn.Module) -> None:
        super().__init__()
        self.rotary = rotary
        self._axes_D = _axes_of(rotary) if hasattr(rotary, "mrope_section") else None
        self._tables: dict[tuple[Any, ...], tuple[torch.Tensor, torch.Tensor]] = {}

    def forward(
        self, hidden: torch.Tensor, position_ids: torch.Tensor, *layer_type: Any, **named: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """position_ids: [1, M], or [3, 1, M] of time, height and width."""
        if position_ids.dim() == 3:
            if self._axes_D is not None and position_ids.stride(0):  # not one row, repeated
                return self._by_axes(hidden, position_ids)
            position_ids = position_ids[0]
        key = (*layer_type, *named.values())
        tables = self._tables.get(key)
        if tables is not None:
            try:
                return (
                    nn.functional.embedding(position_ids, tables[0]),
                    nn.functional.embedding(position_ids, tables[1]),
                )
            except IndexError:  # a position beyond the table: make a longer one below
                pass
        length = max(FIRST_TABLE_LEN, 2 * (int(position_ids.max()) + 1))
        positions_1L = torch.arange(length, device=position_ids.device)[None]
        cos_1LD, sin_1LD = self.rotary(hidden, positions_1L, *layer_type, **named)
        if tables is not None:  # positions that were used before keep their bits
            known = len(tables[0])
            cos_1LD[0, :known], sin_1LD[0, :known] = tables
        self._tables[key] = (cos_1LD[0], sin_1LD[0])
        return self.forward(hidden, position_ids, *layer_type, **named)

    def _by_axes(self, hidden: torch.Tensor, position_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        each = [self.forward(hidden, positions_1M) for positions_1M in position_ids]
        numbers_D = torch.arange(each[0][0].shape[-1])
        cosines_DM, sines_DM = (
            torch.stack(tables)[self._axes_D, 0, :, numbers_D] for tables in zip(*each, strict=True)
        )
        return cosines_DM.T[None], sines_DM.T[None]


def _axes_of(rotary: nn.Module) -> torch.Tensor:
    """int64 [D]: on which of time, height and width each of a token's cosines depends, by the module itself."""
    positions_313 = torch.eye(3, dtype=torch.int64)[:, None]  # of three tokens, each with one that is not 0
    with torch.inference_mode():
        _, sines_13D = rotary(torch.zeros(1, 3, 1), positions_313)
    return sines_13D[0].abs().argmax(0)


def safe_length(count: int, unit: int) -> int:
    """The least length of at least `count` that gives every thread a whole number of units. unit: in elements."""
    num_threads = min(torch.get_num_threads(), -(-count // ELEMENTS_PER_THREAD)) or 1
    step = unit * num_threads
    padded = -(-count // step) * step
    if min(torch.get_num_threads(), -(-padded // ELEMENTS_PER_THREAD)) > num_threads:
        return safe_length(padded, unit)  # the padding makes torch use another thread
    return padded


def _is_activation(place: Place) -> bool:
    module = place.module
    is_known = isinstance(module, ACTIVATION_MODULES) or type(module).__module__ == "transformers.activations"
    return is_known and not isinstance(module, EXACT_MODULES)


def _is_rotary(place: Place) -> bool:
    rope_type = getattr(place.module, "rope_type", None)
    return type(place.module).__name__.endswith("RotaryEmbedding") and isinstance(rope_type, str | dict)


def _check_tables(_table: RotaryTable, place: Place, _calls: Calls) -> None:
    """Whether a module has the interface of transformers' rotary embeddings: (cosines, sines), a row per position."""
    rotary: Any = place.module
    kinds = [()] if isinstance(rotary.rope_type, str) else [(layer_type,) for layer_type in rotary.rope_type]
    hidden, positions = torch.zeros(1, 2, 1), torch.arange(2)[None]
    for kind in kinds:
        try:
            with torch.inference_mode():
                tables = rotary(hidden, positions, *kind)
        except (TypeError, AttributeError, IndexError, RuntimeError) as error:  # some want three positions a token
            raise PartRefused(OTHER_INTERFACE) from error
        if not (isinstance(tables, tuple) and len(tables) == 2 and all(t.shape[:-1] == (1, 2) for t in tables)):
            raise PartRefused(OTHER_INTERFACE)


ACTIVATIONS = Rule("activations row-safe", _is_activation, lambda place: [RowSafeActivation(place.module)])
ROTARIES = Rule("rotary tables kept", _is_rotary, lambda place: [RotaryTable(place.module)], _check_tables)
REPLACED: Replacements = {function: row_safe(function) for function in FUNCTIONS}
