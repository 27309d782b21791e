"""Linear layers prepacked by oneDNN, for the CPU in float32 and bfloat16.

Unlike stock layers they give a row the same bits whatever other rows there are, if there are at least two; where a
large number of rows breaks this, the rows are split (see `row_limit`). A few rows, or one, go through our own kernel
where it is quicker (see `readers`). Where even a few rows change oneDNN's bits, we pack and multiply ourselves (see
`panel_linear`). Invariant: a packed layer keeps no second copy of its weight, except one tied to the embedding.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from decoding.kernels.cpu.program import Call, Rooms, one_thread
from decoding.model.linear.panel_linear import PanelLinear, fits_panels, has_panels
from decoding.model.linear.panels import Panels, fitting_panels
from decoding.model.linear.readers import choose_readers
from decoding.model.linear.row_limit import exact_row_limit, run_in_pieces
from decoding.model.replacing.replacer import Place, Rule, places

# Shape suffixes: M rows, I input width, O output width.
ROWS_HINT = 16  # oneDNN chooses its layout for so many rows
MULTIPLIED_BY_HAND = ("dt_proj",)  # of Mamba-1
Shape = tuple[object, ...]  # of a weight, its dtype, and whether there is no bias
_linear = torch.ops.mkldnn._linear_pointwise.default


class PackedLinear(nn.Module):
    """Replaces an `nn.Linear` of float32 or bfloat16 weights on the CPU."""

    def __init__(self, weight_OI: torch.Tensor, bias_O: torch.Tensor | None) -> None:
        super().__init__()
        self.out_features, self.in_features = self.shape = (weight_OI.shape[0], weight_OI.shape[1])
        self.dtype = weight_OI.dtype
        self.packed_weight = _pack(weight_OI)
        self.bias_O = bias_O
        self.weight = torch.empty(0, dtype=weight_OI.dtype)  # modelling code reads its dtype and device
        self.few_rows = 0  # up to so many rows go through our own kernel
        self._few_numbers, self._most_numbers = -1, sys.maxsize  # numbers of an input for our kernel, and for one call
        self._panels: Panels | None = None

    def __call__(self, input: torch.Tensor) -> torch.Tensor:  # skips nn.Module's hooks, which cost microseconds
        num_numbers = input.numel()
        if num_numbers <= self._few_numbers and self._panels is not None:
            return self._panels.multiply(input)
        if num_numbers > self._most_numbers:
            return run_in_pieces(self.multiply, input, self._most_numbers // self.in_features)
        output: torch.Tensor = _linear(input, self.packed_weight, self.bias_O, "none", [], "")
        return output

    def multiply(self, rows_MI: torch.Tensor) -> torch.Tensor:
        """[M, O], in one oneDNN call for any number of rows."""
        output: torch.Tensor = _linear(rows_MI, self.packed_weight, self.bias_O, "none", [], "")
        return output

    def ready(self, _source: int, _rooms: Rooms) -> list[Call]:
        """No calls: the input needs no preparation."""
        return []

    def call(self, source: int, target: int, _rooms: Rooms) -> Call:
        """A program's call, for up to `few_rows` rows. `few_rows` must not be 0."""
        assert self._panels is not None, "few_rows is 0"
        return self._panels.call(source, target)

    def limit_rows(self, limit: int) -> None:
        """Split inputs of more than `limit` rows from now on."""
        self._most_numbers = limit * self.in_features

    def read_panels(self, panels: Panels, most_rows: int) -> None:
        """Multiply up to `most_rows` rows with `panels` from now on."""
        self.few_rows = most_rows
        self._few_numbers = most_rows * self.in_features
        self._panels = panels if most_rows else None


def can_pack(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether this processor can pack: bfloat16 needs AVX-512 or AVX-NE-CONVERT, and only a trial shows."""
    if device.type != "cpu" or dtype not in (torch.float32, torch.bfloat16) or not torch._C._has_mkldnn:
        return False
    try:
        PackedLinear(torch.zeros(16, 16, dtype=dtype), None)
    except RuntimeError:
        return False
    return True


def is_linear(place: Place) -> bool:
    """Whether a module is a linear layer, but for those whose weight modelling code multiplies itself. Subclasses may
    compute something else."""
    return type(place.module) in (nn.Linear, Conv1D) and place.name not in MULTIPLIED_BY_HAND


def matrix_of(place: Place) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The weight [O, I] of a linear layer, and its bias."""
    parameters = {key: parameter.detach() for key, parameter in place.module.named_parameters()}
    weight = parameters["weight"]
    return weight.t() if isinstance(place.module, Conv1D) else weight, parameters.get("bias")  # GPT-2's is transposed


def linears_of(model: nn.Module) -> Iterator[tuple[nn.Module, str, torch.Tensor, torch.Tensor | None]]:
    """Every linear layer of `model` as (parent, name, weight, bias). Layers may be replaced while iterating."""
    for place in places(model):
        if is_linear(place):
            yield (place.parent, place.name, *matrix_of(place))


def packing_rule() -> Rule:
    """Packs linear layers, of which originals are dropped. A trial with one layer of each shape finds the row limit of
    all layers of that shape. Where oneDNN is not row-exact, or packs float32 otherwise than our kernel reads it, layers
    of that shape become panels."""
    limits: dict[Shape, int | None] = {}
    return Rule("linear layers packed", is_linear, lambda place: [_packed(place, limits)], finish=_choose_readers)


def _packed(place: Place, limits: dict[Shape, int | None]) -> PackedLinear | PanelLinear:
    """limits: of the shapes that were seen; 0 of those that oneDNN does not multiply."""
    weight_OI, bias_O = matrix_of(place)
    shape = (*weight_OI.shape, weight_OI.dtype, bias_O is None)
    if shape not in limits:
        trial = PackedLinear(weight_OI, bias_O)
        limits[shape] = 0 if _is_unreadable(trial) else _row_limit(trial)
    limit = limits[shape]
    if limit == 0 and has_panels(weight_OI.device, weight_OI.dtype) and fits_panels(weight_OI):
        return PanelLinear(weight_OI, bias_O)
    layer = PackedLinear(weight_OI, bias_O)
    if limit:
        layer.limit_rows(limit)
    return layer


def _choose_readers(layers: list[PackedLinear | PanelLinear]) -> None:
    choose_readers([layer for layer in layers if isinstance(layer, PackedLinear)])


def num_few_rows(model: nn.Module) -> int:
    """The most rows that all packed layers of `model` multiply without oneDNN. Beyond it rows must be padded, see
    `row_counts`."""
    return min((module.few_rows for module in model.modules() if isinstance(module, PackedLinear)), default=sys.maxsize)


def num_packed_shapes(model: nn.Module) -> int:
    """The number of different shapes among the packed layers."""
    layers = [module for module in model.modules() if isinstance(module, PackedLinear)]
    return len({(layer.in_features, layer.out_features, layer.bias_O is None) for layer in layers})


def _pack(weight_OI: torch.Tensor) -> torch.Tensor:
    """Pack on one thread, so that the layout, which `panels` reads, does not depend on the number of threads."""
    with one_thread():
        packed: torch.Tensor = torch.ops.mkldnn._reorder_linear_weight(weight_OI.contiguous(), ROWS_HINT)
    return packed


def _row_limit(layer: PackedLinear) -> int | None:
    with torch.inference_mode():
        return exact_row_limit(layer.multiply, layer.in_features, layer.out_features, layer.dtype)


def _is_unreadable(layer: PackedLinear) -> bool:
    """Whether our kernel cannot read a float32 layer. oneDNN is quicker with bfloat16 that only it reads."""
    if layer.dtype != torch.float32:
        return False
    with torch.inference_mode():
        return fitting_panels(layer.packed_weight, layer.bias_O, layer.shape, layer.dtype, layer.multiply) is None
