"""Linear layers prepacked by oneDNN, for the CPU in float32 and bfloat16.

Unlike stock ones they give a row the same bits whatever other rows the step holds, as long as there are at least
two; where that ends at some row count, they run their rows in pieces (see `row_limit`). A few rows, or one, go
through a kernel of our own where it is quicker (see `readers`).
Invariant: a packed layer keeps no second copy of its weight, except one tied to the embedding.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from decoding.attention.program import Call, Rooms
from decoding.attention.team import one_thread
from decoding.model.linear.panels import Panels
from decoding.model.linear.readers import choose_readers
from decoding.model.linear.row_limit import exact_row_limit, run_in_pieces

# Shape suffixes: M rows, I input width, O output width.
ROWS_HINT = 16  # the row count that oneDNN's choice of layout is for
_linear = torch.ops.mkldnn._linear_pointwise.default


class PackedLinear(nn.Module):
    """Stands for an `nn.Linear` of float32 or bfloat16 weights on the CPU."""

    def __init__(self, weight_OI: torch.Tensor, bias_O: torch.Tensor | None) -> None:
        super().__init__()
        self.out_features, self.in_features = self.shape = (weight_OI.shape[0], weight_OI.shape[1])
        self.dtype = weight_OI.dtype
        self.packed_weight = _pack(weight_OI)
        self.bias_O = bias_O
        self.weight = torch.empty(0, dtype=weight_OI.dtype)  # modelling code reads its dtype and device
        self.few_rows = 0  # which go through our own kernel
        self._few_numbers, self._most_numbers = -1, sys.maxsize  # of the input of one call
        self._panels: Panels | None = None

    def __call__(self, input: torch.Tensor) -> torch.Tensor:  # past nn.Module's hooks, which cost microseconds
        num_numbers = input.numel()
        if num_numbers <= self._few_numbers and self._panels is not None:
            return self._panels.multiply(input)
        if num_numbers > self._most_numbers:
            return run_in_pieces(self.multiply, input, self._most_numbers // self.in_features)
        output: torch.Tensor = _linear(input, self.packed_weight, self.bias_O, "none", [], "")
        return output

    def multiply(self, rows_MI: torch.Tensor) -> torch.Tensor:
        """[M, O], in one call however many rows there are."""
        output: torch.Tensor = _linear(rows_MI, self.packed_weight, self.bias_O, "none", [], "")
        return output

    def ready(self, _source: int, _rooms: Rooms) -> list[Call]:
        """In a program: what rows need before `call`, which is nothing."""
        return []

    def call(self, source: int, target: int, _rooms: Rooms) -> Call:
        """In a program, for up to `few_rows` rows, which are some."""
        assert self._panels is not None, "few_rows is 0"
        return self._panels.call(source, target)

    def limit_rows(self, limit: int) -> None:
        """From here on, run more rows than `limit` in pieces."""
        self._most_numbers = limit * self.in_features

    def read_panels(self, panels: Panels, most_rows: int) -> None:
        """From here on, leave up to so many rows to `panels`."""
        self.few_rows = most_rows
        self._few_numbers = most_rows * self.in_features
        self._panels = panels if most_rows else None


def can_pack(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether this processor can: bfloat16 needs one with AVX-512 or AVX-NE-CONVERT, and only trying tells."""
    if device.type != "cpu" or dtype not in (torch.float32, torch.bfloat16) or not torch._C._has_mkldnn:
        return False
    try:
        PackedLinear(torch.zeros(16, 16, dtype=dtype), None)
    except RuntimeError:
        return False
    return True


def linears_of(model: nn.Module) -> Iterator[tuple[nn.Module, str, torch.Tensor, torch.Tensor | None]]:
    """Every linear layer of `model`, which may be replaced meanwhile: its parent, its name there, weight and bias."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is not nn.Linear and type(child) is not Conv1D:  # subclasses may compute something else
                continue
            parameters = {key: parameter.detach() for key, parameter in child.named_parameters()}
            weight = parameters["weight"]
            weight_OI = weight.t() if isinstance(child, Conv1D) else weight  # GPT-2 keeps the transpose
            yield parent, name, weight_OI, parameters.get("bias")


def pack_linears(model: nn.Module) -> int:
    """Replace every linear layer of `model` by its packed form; return how many. Originals are dropped.

    On a processor that needs it, layers get the row limit that the first of their shape shows in a trial.
    """
    packed: list[PackedLinear] = []
    for parent, name, weight_OI, bias_O in linears_of(model):
        packed.append(PackedLinear(weight_OI, bias_O))
        setattr(parent, name, packed[-1])
    _limit_rows(packed)
    choose_readers(packed)
    return len(packed)


def num_few_rows(model: nn.Module) -> int:
    """Up to how many rows no packed layer of `model` leaves to oneDNN, which wants row counts that it knows."""
    return min((module.few_rows for module in model.modules() if isinstance(module, PackedLinear)), default=sys.maxsize)


def num_packed_shapes(model: nn.Module) -> int:
    """Of its packed layers, those that differ."""
    layers = [module for module in model.modules() if isinstance(module, PackedLinear)]
    return len({(layer.in_features, layer.out_features, layer.bias_O is None) for layer in layers})


def _pack(weight_OI: torch.Tensor) -> torch.Tensor:
    """On one thread, so that the layout is the same on any number of them, and the one that `panels` reads."""
    with one_thread():
        packed: torch.Tensor = torch.ops.mkldnn._reorder_linear_weight(weight_OI.contiguous(), ROWS_HINT)
    return packed


def _limit_rows(layers: Sequence[PackedLinear]) -> None:
    limits: dict[tuple[object, ...], int | None] = {}
    for layer in layers:
        width, out_width, dtype = layer.in_features, layer.out_features, layer.weight.dtype
        shape = (width, out_width, dtype, layer.bias_O is None)
        if shape not in limits:
            with torch.inference_mode():
                limits[shape] = exact_row_limit(layer.multiply, width, out_width, dtype)
        limit = limits[shape]
        if limit is not None:
            layer.limit_rows(limit)
