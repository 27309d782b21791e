"""Floats in panels that our own kernel reads: of our packing, or oneDNN's, for the few rows of a decode step.

oneDNN packs most layers in panels of 64 outputs and sums their input in blocks. If a trial shows that our kernel, which
sums in the same blocks, gives the same bits, either may multiply a row.
Invariant: a row's result has the same bits whatever other rows there are.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator

import torch
from torch.nn.functional import pad

from decoding.kernels.cpu.products.panels import (
    NUM_FIELDS,
    PANEL,
    PANEL_BYTES,
    STEP_BYTES,
    multiply_floats,
    multiply_halves,
)
from decoding.kernels.cpu.program import MOST_ROWS, SOURCE, TARGET, Call, Kernel, Rooms
from decoding.kernels.processor import multiplies_halves as multiplies_pairs
from decoding.kernels.processor import widens_halves
from decoding.weights.numbers.numbers import Numbers, address_of, padded_bias

# Shape suffixes: M rows, I input width, O output width; P panels, S steps.
STEP_WORD = torch.int32  # as wide as a step
TRIAL_ROWS, MOST_TRIAL_ROWS = 16, 512
TRIAL_NUMBERS = 1 << 19  # results to compare: another order of sums changes one bfloat16 number in ten thousand
USUAL_BLOCKS = (512, 1024, 256, 2048, 4096)  # lengths of a block to try, in numbers of the input
CLAIM_BYTES = 1 << 18  # of weights that a thread claims at a time
FEWEST_CLAIMS = 8  # a layer has at least so many claims (if it has the panels), so that threads end at similar times
ALONE_BYTES = 1 << 16  # with fewer bytes of weights, waking another thread costs more than it saves
Fields = ctypes.c_int64 * NUM_FIELDS
Multiply = Callable[[torch.Tensor], torch.Tensor]  # [M, I] to [M, O]


class FloatPanels(Numbers):
    """block: the number of steps that are summed before they are added to the total."""

    few_rows = MOST_ROWS

    def __init__(
        self, packed: torch.Tensor, bias_O: torch.Tensor | None, shape: tuple[int, int], dtype: torch.dtype, block: int
    ) -> None:
        """packed: by oneDNN, or a tensor that is panels already. shape: of the weight, [O, I]."""
        num_outputs, width = shape
        num_panels = -(-num_outputs // PANEL)
        self.shape, self.dtype, self.block = shape, dtype, block
        self._packed = packed
        self._bias = padded_bias(bias_O, num_panels * PANEL)
        self._is_small = num_outputs * width * dtype.itemsize < ALONE_BYTES
        self.row_steps = {SOURCE: width * dtype.itemsize, TARGET: num_outputs * dtype.itemsize}
        address = torch.ops.mkldnn.data_ptr(packed) if packed.is_mkldnn else packed.data_ptr()
        self.num_bytes = torch.ops.mkldnn._nbytes(packed) if packed.is_mkldnn else packed.nbytes
        leap = self.num_bytes // num_panels
        self._constants = (  # the kernel's fields after COUNTER
            address,
            address_of(self._bias),
            width * dtype.itemsize // STEP_BYTES,
            block,
            leap,
            num_outputs,
            panels_a_claim(num_panels, leap),
            dtype.itemsize,
        )
        self._share = multiply_halves if dtype == torch.bfloat16 else multiply_floats
        self.form = FloatPanels, shape, self._share
        self._kernel = Kernel(self._share)

    @classmethod
    def of(cls, floats: Numbers, bias_O: torch.Tensor | None, dtype: torch.dtype, _device: torch.device) -> FloatPanels:
        """In panels of our own packing, for what oneDNN never multiplies."""
        weight_OI = floats.dense(dtype)
        num_outputs, width = weight_OI.shape
        return cls(in_panels(weight_OI), bias_O, (num_outputs, width), dtype, width * dtype.itemsize // STEP_BYTES)

    def multiply(self, input: torch.Tensor) -> torch.Tensor:
        """Each row with the bits that oneDNN gives it in a call with several rows, if oneDNN packed."""
        input, (num_outputs, _) = input.contiguous(), self.shape
        output = torch.empty(*input.shape[:-1], num_outputs, dtype=self.dtype)
        num_rows = output.numel() // num_outputs
        fields = Fields(input.data_ptr(), output.data_ptr(), num_rows, 0, *self._constants)
        self._kernel.run(ctypes.addressof(fields), 1 if self._is_small else torch.get_num_threads())
        return output

    def call(self, source: int, target: int, _rooms: Rooms) -> Call:
        return Call(self._share, (source, target, 0, 0, *self._constants))


def has_panels(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether this processor multiplies panels of `dtype`."""
    is_known = dtype == torch.float32 or (dtype == torch.bfloat16 and widens_halves())
    return device.type == "cpu" and is_known


def panels_a_claim(num_panels: int, panel_bytes: int) -> int:
    """The number of panels that a thread claims at a time."""
    return max(1, min(CLAIM_BYTES // panel_bytes, num_panels // FEWEST_CLAIMS))


def fitting_panels(
    packed: torch.Tensor, bias_O: torch.Tensor | None, shape: tuple[int, int], dtype: torch.dtype, multiply: Multiply
) -> FloatPanels | None:
    """Panels that read `packed` and give the bits of `multiply`, found by trial; None if no block length does."""
    if not _can_read(packed, shape, dtype):
        return None
    num_rows = min(max(TRIAL_ROWS, TRIAL_NUMBERS // shape[0]), MOST_TRIAL_ROWS)
    rows_MI = torch.randn(num_rows, shape[1], generator=torch.Generator().manual_seed(0)).to(dtype)
    expected_MO = torch.cat([multiply(few_MI) for few_MI in torch.split(rows_MI, TRIAL_ROWS)])
    for block in _blocks(shape[1], dtype):
        panels = FloatPanels(packed, bias_O, shape, dtype, block)
        if torch.equal(panels.multiply(rows_MI), expected_MO):
            return panels
    return None


def _can_read(packed: torch.Tensor, shape: tuple[int, int], dtype: torch.dtype) -> bool:
    """Whether the tensor is large enough for panels of the weight, so that no address outside it is read."""
    if dtype == torch.bfloat16 and not multiplies_pairs():
        return False
    num_steps, rest = divmod(shape[1] * dtype.itemsize, STEP_BYTES)
    num_bytes, num_panels = torch.ops.mkldnn._nbytes(packed), -(-shape[0] // PANEL)
    return rest == 0 and num_bytes % num_panels == 0 and num_bytes // num_panels >= num_steps * PANEL_BYTES


def _blocks(width: int, dtype: torch.dtype) -> Iterator[int]:
    """The block lengths to try, in steps, the most usual first."""
    places_a_step = STEP_BYTES // dtype.itemsize
    places = [*(each for each in USUAL_BLOCKS if each < width), width]
    return (each // places_a_step for each in places)


def in_panels(weight_OI: torch.Tensor) -> torch.Tensor:
    """[P, S, PANEL]: for each step along the input four bytes of each output, with zeros after the last output."""
    words_OS = pad(weight_OI, (0, 0, 0, -len(weight_OI) % PANEL)).contiguous().view(STEP_WORD)
    return words_OS.view(-1, PANEL, words_OS.shape[1]).transpose(1, 2).contiguous()
