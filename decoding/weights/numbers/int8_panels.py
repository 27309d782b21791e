"""int8 weights as the CPU's kernels read them, with one scale for each output and one for each row of the input.

Integer sums are exact, so a row's result has the same bits whatever other rows there are.
Invariant: only the integers and scales of the weights are kept.
"""

from __future__ import annotations

import ctypes

import torch

from decoding.kernels.cpu.products.int8 import (
    LARGEST,
    NUM_FIELDS,
    NUM_ROUNDING_FIELDS,
    ROW_SCALES,
    ZERO_POINT,
    multiply_to_floats,
    multiply_to_halves,
    round_rows,
)
from decoding.kernels.cpu.products.panels import PANEL, STEP_BYTES
from decoding.kernels.cpu.program import MOST_ROWS, SOURCE, TARGET, Call, Kernel, Rooms
from decoding.weights.numbers.float_panels import ALONE_BYTES, panels_a_claim
from decoding.weights.numbers.numbers import Numbers, address_of, padded_bias

# Shape suffixes: M rows, I input width, O output width, P panels, S steps.
SCALE_BYTES = 4
SLICE = 4096  # the outputs whose weights are rounded at a time
Fields = ctypes.c_int64 * NUM_FIELDS
RoundingFields = ctypes.c_int64 * NUM_ROUNDING_FIELDS


class Int8Panels(Numbers):
    """Of float32 or bfloat16 weights, which are also what goes in and comes out."""

    few_rows = MOST_ROWS

    def __init__(self, weight_OI: torch.Tensor, bias_O: torch.Tensor | None) -> None:
        self.dtype = weight_OI.dtype
        num_outputs, width = self.shape = (weight_OI.shape[0], weight_OI.shape[1])
        num_panels, num_steps = -(-num_outputs // PANEL), -(-width // STEP_BYTES)
        self._integers = torch.zeros(num_panels, num_steps, PANEL, STEP_BYTES, dtype=torch.int8)
        self._starts, self._scales = torch.zeros(num_panels * PANEL, dtype=torch.int32), torch.zeros(num_panels * PANEL)
        self._bias = padded_bias(bias_O, num_panels * PANEL)
        for start in range(0, num_outputs, SLICE):
            self._store(weight_OI[start : start + SLICE].float(), start)
        self._padded_width = num_steps * STEP_BYTES
        self._widths = width, self._padded_width, self.dtype.itemsize
        self._is_small = self._integers.numel() < ALONE_BYTES
        self._constants = (
            self._integers.data_ptr(),
            address_of(self._bias),
            num_steps,
            self._starts.data_ptr(),
            self._scales.data_ptr(),
            num_outputs,
            panels_a_claim(num_panels, self._padded_width * PANEL),
            self.dtype.itemsize,
        )
        self.num_bytes = self._integers.numel() + 8 * len(self._scales)
        self._share = multiply_to_halves if self.dtype == torch.bfloat16 else multiply_to_floats
        self.form = Int8Panels, self.shape, self._share
        self.row_steps = {
            SOURCE: self._padded_width,
            TARGET: num_outputs * self.dtype.itemsize,
            ROW_SCALES: SCALE_BYTES,
        }
        self._kernel, self._rounding = Kernel(self._share), Kernel(round_rows)

    @classmethod
    def of(cls, floats: Numbers, bias_O: torch.Tensor | None, dtype: torch.dtype, _device: torch.device) -> Int8Panels:
        return cls(floats.dense(dtype), bias_O)

    def multiply(self, input: torch.Tensor) -> torch.Tensor:
        input, (num_outputs, _) = input.contiguous(), self.shape
        output = torch.empty(*input.shape[:-1], num_outputs, dtype=self.dtype)
        num_rows, num_threads = output.numel() // num_outputs, torch.get_num_threads()
        integers_MI = torch.empty(num_rows, self._padded_width, dtype=torch.uint8)
        scales_M = torch.empty(num_rows)
        rows = (input.data_ptr(), integers_MI.data_ptr(), num_rows, 0)
        rounding = RoundingFields(*rows, scales_M.data_ptr(), *self._widths)
        self._rounding.run(ctypes.addressof(rounding), num_threads if integers_MI.numel() > ALONE_BYTES else 1)
        rows = (integers_MI.data_ptr(), output.data_ptr(), num_rows, 0)
        fields = Fields(*rows, scales_M.data_ptr(), *self._constants)
        self._kernel.run(ctypes.addressof(fields), 1 if self._is_small else num_threads)
        return output

    def ready(self, source: int, rooms: Rooms) -> list[Call]:
        """Rounds the input's rows to integers."""
        integers, scales = self._rounded_in(rooms)
        return [Call(round_rows, (source, integers, 0, 0, scales, *self._widths))]

    def call(self, _source: int, target: int, rooms: Rooms) -> Call:
        integers, scales = self._rounded_in(rooms)
        return Call(self._share, (integers, target, 0, 0, scales, *self._constants))

    def _rounded_in(self, rooms: Rooms) -> tuple[int, int]:
        return rooms.room("integers", self._padded_width), rooms.room("scales", SCALE_BYTES)

    def _store(self, weight_OI: torch.Tensor, start: int) -> None:
        """Round the float32 weights of the outputs from `start` on, a multiple of `PANEL`."""
        num_outputs, width = weight_OI.shape
        scales_O = weight_OI.abs().amax(1) / LARGEST
        integers_OI = torch.where(scales_O[:, None] > 0, weight_OI / scales_O[:, None], 0).round().to(torch.int8)
        first, num_panels = start // PANEL, -(-num_outputs // PANEL)
        whole = torch.zeros(num_panels * PANEL, self._integers.shape[1] * STEP_BYTES, dtype=torch.int8)
        whole[:num_outputs, :width] = integers_OI
        panels_PSOI = whole.view(num_panels, PANEL, -1, STEP_BYTES).transpose(1, 2)
        self._integers[first : first + num_panels] = panels_PSOI
        self._starts[start : start + num_outputs] = -ZERO_POINT * integers_OI.sum(1, dtype=torch.int32)
        self._scales[start : start + num_outputs] = scales_O
