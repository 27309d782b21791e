"""Linear layers in panels of our own packing, for experts' layers and for all where oneDNN's bits change with the rows.

Invariant: a row's result has the same bits whatever other rows there are.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.functional import pad

from decoding.kernels.cpu.products.panels import PANEL, STEP_BYTES
from decoding.kernels.cpu.program import MOST_ROWS, Call, Rooms
from decoding.kernels.processor import multiplies_halves
from decoding.model.linear.panels import Panels

# Shape suffixes: O outputs, I input width, P panels, S steps.
STEP_WORD = torch.int32  # as wide as a step


class PanelLinear(nn.Module):
    """Replaces an `nn.Linear` of float32 or bfloat16 weights on the CPU."""

    def __init__(self, weight_OI: torch.Tensor, bias_O: torch.Tensor | None) -> None:
        super().__init__()
        self.out_features, self.in_features = self.shape = (weight_OI.shape[0], weight_OI.shape[1])
        self.weight = torch.empty(0, dtype=weight_OI.dtype)  # modelling code reads its dtype and device
        self.few_rows = MOST_ROWS  # the most rows of a program
        bias_O = None if bias_O is None else bias_O.float()
        num_steps = self.in_features * weight_OI.dtype.itemsize // STEP_BYTES
        self._panels = Panels(_in_panels(weight_OI), bias_O, self.shape, weight_OI.dtype, num_steps)
        self.row_steps = self._panels.row_steps

    def __call__(self, input: torch.Tensor) -> torch.Tensor:  # skips nn.Module's hooks, which cost microseconds
        return self._panels.multiply(input)

    def ready(self, _source: int, _rooms: Rooms) -> list[Call]:
        """No calls: the input needs no preparation."""
        return []

    def call(self, source: int, target: int, _rooms: Rooms) -> Call:
        """A program's call."""
        return self._panels.call(source, target)


def has_panels(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether this processor multiplies panels of `dtype`."""
    is_known = dtype == torch.float32 or (dtype == torch.bfloat16 and multiplies_halves())
    return device.type == "cpu" and is_known


def fits_panels(weight_OI: torch.Tensor) -> bool:
    """Whether a row of the input is a whole number of steps."""
    return weight_OI.shape[1] * weight_OI.itemsize % STEP_BYTES == 0


def _in_panels(weight_OI: torch.Tensor) -> torch.Tensor:
    """[P, S, PANEL]: for each step along the input four bytes of each output, with zeros after the last output."""
    words_OS = pad(weight_OI, (0, 0, 0, -len(weight_OI) % PANEL)).contiguous().view(STEP_WORD)
    return words_OS.view(-1, PANEL, words_OS.shape[1]).transpose(1, 2).contiguous()
