"""Linear layers with int8 weights on the CPU, with one scale for each output and one for each row of the input.

Integer sums are exact, so a row's result has the same bits whatever other rows there are.
Invariant: only the integers and scales of the weights are kept.
"""

from __future__ import annotations

import ctypes

import torch
from torch import nn

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
from decoding.kernels.cpu.program import MOST_ROWS, SOURCE, TARGET, Call, Rooms, Team
from decoding.kernels.processor import multiplies_bytes
from decoding.model.linear.packed import can_pack, linears_of
from decoding.model.linear.panels import ALONE_BYTES, panels_a_claim

# Shape suffixes: M rows, I input width, O output width, P panels, S steps.
FEWEST_OUTPUTS = PANEL  # smaller layers, such as routers of experts, keep their precision
SCALE_BYTES = 4
SLICE = 4096  # the outputs whose weights are rounded at a time
Fields = ctypes.c_int64 * NUM_FIELDS
RoundingFields = ctypes.c_int64 * NUM_ROUNDING_FIELDS


class Int8Linear(nn.Module):
    """Replaces an `nn.Linear` whose inputs and outputs are float32 or bfloat16."""

    def __init__(self, weight_OI: torch.Tensor, bias_O: torch.Tensor | None) -> None:
        super().__init__()
        self.out_features, self.in_features = self.shape = (weight_OI.shape[0], weight_OI.shape[1])
        self.weight = torch.empty(0, dtype=weight_OI.dtype)  # modelling code reads its dtype and device
        self._dtype = weight_OI.dtype
        num_panels, num_steps = -(-self.out_features // PANEL), -(-self.in_features // STEP_BYTES)
        self._integers = torch.zeros(num_panels, num_steps, PANEL, STEP_BYTES, dtype=torch.int8)
        self._starts, self._scales = torch.zeros(num_panels * PANEL, dtype=torch.int32), torch.zeros(num_panels * PANEL)
        self._bias = None if bias_O is None else torch.zeros(num_panels * PANEL)
        if self._bias is not None and bias_O is not None:
            self._bias[: self.out_features] = bias_O
        for start in range(0, self.out_features, SLICE):
            self._store(weight_OI[start : start + SLICE].float(), start)
        self._padded_width = num_steps * STEP_BYTES
        self._is_small = self._integers.numel() < ALONE_BYTES
        self._constants = (
            self._integers.data_ptr(),
            0 if self._bias is None else self._bias.data_ptr(),
            num_steps,
            self._starts.data_ptr(),
            self._scales.data_ptr(),
            self.out_features,
            panels_a_claim(num_panels, self._padded_width * PANEL),
            self._dtype.itemsize,
        )
        self.num_bytes = self._integers.numel() + 8 * len(self._scales)
        self._share = multiply_to_halves if self._dtype == torch.bfloat16 else multiply_to_floats
        self._team = Team(self._share)
        self.few_rows = MOST_ROWS  # the most rows of a program
        self.row_steps = {
            SOURCE: self._padded_width,
            TARGET: self.out_features * self._dtype.itemsize,
            ROW_SCALES: SCALE_BYTES,
        }
        self._rounding = Team(round_rows)

    def __call__(self, input: torch.Tensor) -> torch.Tensor:  # skips nn.Module's hooks, which cost microseconds
        input = input.contiguous()
        output = torch.empty(*input.shape[:-1], self.out_features, dtype=self._dtype)
        num_rows, num_threads = output.numel() // self.out_features, torch.get_num_threads()
        integers_MI = torch.empty(num_rows, self._padded_width, dtype=torch.uint8)
        scales_M = torch.empty(num_rows)
        rounding = RoundingFields(
            input.data_ptr(),
            integers_MI.data_ptr(),
            num_rows,
            0,
            scales_M.data_ptr(),
            self.in_features,
            self._padded_width,
            self._dtype.itemsize,
        )
        self._rounding.run(ctypes.addressof(rounding), num_threads if integers_MI.numel() > ALONE_BYTES else 1)
        rows = (integers_MI.data_ptr(), output.data_ptr(), num_rows, 0, scales_M.data_ptr())
        fields = Fields(*rows, *self._constants)
        self._team.run(ctypes.addressof(fields), 1 if self._is_small else num_threads)
        return output

    def ready(self, source: int, rooms: Rooms) -> list[Call]:
        """A program's call that rounds the input's rows to integers."""
        integers, scales = self._rounded_in(rooms)
        widths = (self.in_features, self._padded_width, self._dtype.itemsize)
        return [Call(round_rows, (source, integers, 0, 0, scales, *widths))]

    def call(self, _source: int, target: int, rooms: Rooms) -> Call:
        """A program's call that multiplies the integers from `ready`."""
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


def can_round_to_int8(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether the processor has int8 dot products, and can pack layers of `dtype` at all."""
    return device.type == "cpu" and multiplies_bytes() and can_pack(device, dtype)


def round_linears(model: nn.Module, but: str = "") -> None:
    """Replace the linear layers of `model`, the head included, by int8 ones. Originals are dropped.

    but: the name of layers that are not replaced.
    """
    for parent, name, weight_OI, bias_O in linears_of(model):
        if len(weight_OI) >= FEWEST_OUTPUTS and name != but:
            setattr(parent, name, Int8Linear(weight_OI, bias_O))
