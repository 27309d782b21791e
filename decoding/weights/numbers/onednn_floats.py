"""Floats that oneDNN packed, for the CPU in float32 and bfloat16.

Unlike stock layers they give a row the same bits whatever other rows there are, if there are at least two; where a
large number of rows breaks this, the rows are split (see `row_limit`). A few rows, or one, go through our own kernel
where it is quicker (see `readers`). Invariant: there is no second copy of them, except one tied to the embedding.
"""

from __future__ import annotations

import sys
from typing import Any

import torch

from decoding.kernels.cpu.program import Call, Rooms, one_thread
from decoding.kernels.processor import multiplies_in_tiles
from decoding.weights.numbers.float_panels import FloatPanels, fitting_panels, has_panels
from decoding.weights.numbers.numbers import Numbers
from decoding.weights.row_limit import exact_row_limit, run_in_pieces

# Shape suffixes: M rows, I input width, O output width.
ROWS_HINT = 16  # oneDNN chooses its layout for so many rows
_linear = torch.ops.mkldnn._linear_pointwise.default


class OneDnnFloats(Numbers):
    """few_rows: up to so many rows go through our own kernel."""

    shape: tuple[int, int]

    def __init__(self, weight_OI: torch.Tensor, bias_O: torch.Tensor | None) -> None:
        _, self._width = self.shape = (weight_OI.shape[0], weight_OI.shape[1])
        self.dtype = weight_OI.dtype
        self.packed_weight, self.bias_O = _pack(weight_OI), bias_O
        self.num_bytes = torch.ops.mkldnn._nbytes(self.packed_weight)
        self.code_shape = (self.shape, self.dtype, bias_O is None)
        self._few_numbers, self._most_numbers = -1, sys.maxsize  # numbers of an input for our kernel, and for one call
        self._panels: FloatPanels | None = None

    @classmethod
    def of(cls, floats: Numbers, bias_O: torch.Tensor | None, dtype: torch.dtype, _device: torch.device) -> Numbers:
        """In panels of our own where oneDNN does not pack the dtype."""
        if not onednn_packs(dtype):
            return FloatPanels.of(floats, bias_O, dtype, _device)
        return cls(floats.dense(dtype), bias_O)

    def multiply(self, input: torch.Tensor) -> torch.Tensor:
        num_numbers = input.numel()
        if num_numbers <= self._few_numbers and self._panels is not None:
            return self._panels.multiply(input)
        if num_numbers > self._most_numbers:
            return run_in_pieces(self.multiply_at_once, input, self._most_numbers // self._width)
        output: torch.Tensor = _linear(input, self.packed_weight, self.bias_O, "none", [], "")
        return output

    def multiply_at_once(self, rows_MI: torch.Tensor) -> torch.Tensor:
        """[M, O], in one oneDNN call for any number of rows."""
        output: torch.Tensor = _linear(rows_MI, self.packed_weight, self.bias_O, "none", [], "")
        return output

    def call(self, source: int, target: int, rooms: Rooms) -> Call:
        """`few_rows` must not be 0."""
        assert self._panels is not None, "few_rows is 0"
        return self._panels.call(source, target, rooms)

    def limit_rows(self, limit: int) -> None:
        """Split inputs of more than `limit` rows from now on."""
        self._most_numbers = limit * self._width

    def read_panels(self, panels: FloatPanels, most_rows: int) -> None:
        """Multiply up to `most_rows` rows with `panels` from now on."""
        self.few_rows = most_rows
        self._few_numbers = most_rows * self._width
        self._panels = panels if most_rows else None


def can_pack(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether oneDNN or our own kernel multiplies packed weights of `dtype` here."""
    return device.type == "cpu" and (onednn_packs(dtype) or (torch._C._has_mkldnn and has_panels(device, dtype)))


def onednn_packs(dtype: torch.dtype) -> bool:
    """bfloat16 needs AVX-512 or AVX-NE-CONVERT, and only a trial shows. In tiles oneDNN's panels have 32 outputs, and
    its sums an order that depends on the number of rows: ours are used."""
    if dtype not in (torch.float32, torch.bfloat16) or not torch._C._has_mkldnn:
        return False
    if dtype == torch.bfloat16 and multiplies_in_tiles():
        return False
    try:
        OneDnnFloats(torch.zeros(16, 16, dtype=dtype), None)
    except RuntimeError:
        return False
    return True


def _pack(weight_OI: torch.Tensor) -> torch.Tensor:
    """Pack on one thread, so that the layout, which our kernel reads, does not depend on the number of threads."""
    with one_thread():
        packed: torch.Tensor = torch.ops.mkldnn._reorder_linear_weight(weight_OI.contiguous(), ROWS_HINT)
    return packed


def row_limit(numbers: Any) -> int | None:
    """How many rows, at the most, have in one call of oneDNN the bits that they have among a few; None if there is no
    such limit. 0 where none would help, and where our kernel cannot read what is float32: oneDNN is quicker with
    bfloat16 that only it reads."""
    multiply, (num_outputs, width), dtype = numbers.multiply_at_once, numbers.shape, numbers.dtype
    with torch.inference_mode():
        if dtype == torch.float32:
            panels = fitting_panels(numbers.packed_weight, numbers.bias_O, numbers.shape, dtype, multiply)
            if panels is None:
                return 0
        return exact_row_limit(multiply, width, num_outputs, dtype)
