"""Small integers in groups as the CPU's kernels read them, see `Layout`.

Knows no kinds. Invariant: only the packed integers are kept, once.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Iterator

import numpy as np
import torch
from torch.nn import functional

from decoding.kernels.cpu.products.grouped.layout import BLOCK, HALF_BYTES, ROW_RECORD, SPAN, STEPS, Layout
from decoding.kernels.cpu.products.grouped.lookup import NUM_FIELDS as NUM_LOOKING_FIELDS
from decoding.kernels.cpu.products.grouped.lookup import look_up_groups
from decoding.kernels.cpu.products.grouped.multiplying import NUM_FIELDS, SHARES
from decoding.kernels.cpu.products.grouped.packing import pack_codes
from decoding.kernels.cpu.products.grouped.records import NUM_FIELDS as NUM_ROUNDING_FIELDS
from decoding.kernels.cpu.products.grouped.records import round_blocks
from decoding.kernels.cpu.products.panels import PANEL
from decoding.kernels.cpu.program import MOST_ROWS, SOURCE, TARGET, Call, Kernel, Rooms
from decoding.weights.groups import (
    HAS_MINIMA,
    Groups,
    factors_of,
    has_zero_point,
    joined,
    rows_of,
    wholes_of,
    zero_point,
)
from decoding.weights.numbers.float_panels import ALONE_BYTES, panels_a_claim
from decoding.weights.numbers.numbers import Numbers, address_of, padded_bias
from decoding.weights.numbers.stored_codes import StoredCodes

# Shape suffixes: M rows, O outputs, I input width, G groups; P panels, S spans or a block's steps, B blocks, N bytes.
Fields = ctypes.c_int64 * NUM_FIELDS
RoundingFields = ctypes.c_int64 * NUM_ROUNDING_FIELDS
LookingFields = ctypes.c_int64 * NUM_LOOKING_FIELDS


class PackedGroups:
    """A matrix [O, I] in panels, packed from slices of its rows, which have the same bits and group.

    Scales and minima are kept as float16, times a power of two for each output, or as whole bytes, and then their units
    so. If every minimum is the scale times one zero point, only that is kept.
    """

    def __init__(self, slices: Iterable[Groups], shape: tuple[int, int]) -> None:
        self.shape = shape
        self.num_panels, self.num_blocks = -(-shape[0] // PANEL), -(-shape[1] // BLOCK)
        self.factors = torch.ones(self.num_panels * PANEL)
        num_packed = 0
        for groups in _whole_panels(slices):
            if num_packed == 0:
                self.layout = Layout(groups.bits, groups.group, 1 if groups.has_units else HALF_BYTES)
                self.zero = zero_point(groups.scales_OG, groups.minima_OG, groups.bits)
                self._packed = self._room()
            if self.zero != HAS_MINIMA and not has_zero_point(groups.scales_OG, groups.minima_OG, self.zero):
                self._keep_minima(num_packed)
            self._store(groups, num_packed)
            num_packed += len(groups.codes_OI)
        assert num_packed == shape[0], (num_packed, shape)

    @property
    def address(self) -> int:
        return self._packed.data_ptr()

    @property
    def record(self) -> int:
        """Bytes of a panel's block."""
        return self.layout.code_bytes + self.layout.pair_bytes * self._num_pairs

    @property
    def units(self) -> int:
        """Bytes before each span, of the units of its scales and minima."""
        return self.layout.unit_bytes * self._num_pairs

    @property
    def panel_bytes(self) -> int:
        return self.num_blocks * self.record + self._num_spans * self.units

    @property
    def _num_pairs(self) -> int:
        return 2 if self.zero == HAS_MINIMA else 1

    @property
    def _num_spans(self) -> int:
        return self.num_blocks // SPAN if self.layout.unit_bytes else 1

    @property
    def num_bytes(self) -> int:
        return self._packed.numel() + 4 * len(self.factors)

    def look_up_fields(self, dtype: torch.dtype) -> tuple[int, ...]:
        """The fields of a call of `look_up_groups` after its ids."""
        layout = self.layout
        places = (self.record, self.num_blocks, self.factors.data_ptr())
        return (*places, dtype.itemsize, self.zero, layout.bits, layout.group, self.units)

    def _room(self) -> torch.Tensor:
        """[P, S, N]: of spans; of one where they have no units."""
        span_bytes = self.panel_bytes // self._num_spans
        return torch.zeros(self.num_panels, self._num_spans, span_bytes, dtype=torch.uint8)

    def _blocks(self, spans_PSN: torch.Tensor) -> torch.Tensor:
        """[P, S, B, N]: the records of each span's blocks."""
        blocks_PSBN: torch.Tensor = spans_PSN[:, :, self.units :].unfold(2, self.record, self.record)
        return blocks_PSBN

    def _store(self, groups: Groups, first: int) -> None:
        """Pack the rows from `first` on, a multiple of `PANEL`."""
        num_outputs, width = groups.codes_OI.shape
        panels = self._packed[first // PANEL : -(-(first + num_outputs) // PANEL)]
        num_more = (self.num_blocks * BLOCK - width, len(panels) * PANEL - num_outputs)
        codes_OI = functional.pad(groups.codes_OI, (0, num_more[0], 0, num_more[1])).contiguous()
        words_OBS = codes_OI.numpy().view(np.uint32).reshape(-1, self.num_blocks, STEPS)
        blocks_PSBN = self._blocks(panels)
        pack_codes(words_OBS, self.layout.bits, blocks_PSBN.numpy().view(np.uint32))
        pairs = [(groups.scales_OG, groups.scale_units_OS), (groups.minima_OG, groups.minimum_units_OS)]
        pairs = pairs[: self._num_pairs]
        factors_O = factors_of(numbers_OG if units_OS is None else units_OS for numbers_OG, units_OS in pairs)
        self.factors[first : first + num_outputs] = factors_O
        start, unit_start = self.layout.code_bytes, 0
        for numbers_OG, units_OS in pairs:
            end, unit_end = start + self.layout.pair_bytes, unit_start + self.layout.unit_bytes
            if units_OS is None:
                stored_OG = (numbers_OG / factors_O[:, None]).half()
            else:
                stored_OG = wholes_of(numbers_OG, units_OS)
                panels[:, :, unit_start:unit_end] = self._by_panel(
                    (units_OS / factors_O[:, None]).half(), self._num_spans
                )
            by_panel = self._by_panel(stored_OG, self.num_blocks * self.layout.num_groups)
            blocks_PSBN[..., start:end] = by_panel.view((*blocks_PSBN.shape[:3], -1))
            start, unit_start = end, unit_end

    def _by_panel(self, numbers_OG: torch.Tensor, num_columns: int) -> torch.Tensor:
        """uint8 [P, G, N]: the bytes of each panel's numbers, those of a column side by side; zeros where there are no
        outputs or columns."""
        num_outputs, num_groups = numbers_OG.shape
        padded = functional.pad(numbers_OG, (0, num_columns - num_groups, 0, -num_outputs % PANEL))
        return padded.view(-1, PANEL, num_columns).transpose(1, 2).contiguous().view(torch.uint8)

    def _keep_minima(self, num_packed: int) -> None:
        """Write the minima of what is packed, since they are not all one zero point times the scale."""
        packed, zero, pair_bytes, unit_bytes = self._packed, self.zero, self.layout.pair_bytes, self.layout.unit_bytes
        old_record, old_blocks = self.record, self._blocks(packed)
        self.zero = HAS_MINIMA
        self._packed = self._room()
        blocks = self._blocks(self._packed)
        for panel in range(num_packed // PANEL):
            blocks[panel, ..., :old_record] = old_blocks[panel]
            if unit_bytes:
                blocks[panel, ..., old_record:] = old_blocks[panel, ..., old_record - pair_bytes :]
                units = packed[panel, :, :unit_bytes].contiguous().view(torch.float16).float() / 2**8
                self._packed[panel, :, :unit_bytes] = units.half().view(torch.uint8)
                self._packed[panel, :, unit_bytes : 2 * unit_bytes] = (units * zero).half().view(torch.uint8)
            else:
                scales = blocks[panel, ..., old_record - pair_bytes : old_record].contiguous().view(torch.float16)
                scales = scales.float() / 2**8
                blocks[panel, ..., old_record - pair_bytes : old_record] = scales.half().view(torch.uint8)
                blocks[panel, ..., old_record:] = (scales * zero).half().view(torch.uint8)
        self.factors[:num_packed] *= 2**8


class GroupedCodes(Numbers):
    """Multiplied and looked up in `dtype`, float32 or bfloat16."""

    few_rows = MOST_ROWS

    def __init__(
        self, slices: Iterable[Groups], shape: tuple[int, int], bias_O: torch.Tensor | None, dtype: torch.dtype
    ) -> None:
        """slices: the rows of the matrix in order, packed one by one; all of the same bits and group."""
        self.shape, self.dtype = shape, dtype
        self.packed = packed = PackedGroups(slices, shape)
        self._bias = padded_bias(bias_O, packed.num_panels * PANEL)
        self._row_bytes = packed.num_blocks * ROW_RECORD
        panel_bytes = packed.panel_bytes
        self._is_small = packed.num_panels * panel_bytes < ALONE_BYTES
        num_outputs, width = shape
        self._constants = (
            packed.address,
            packed.record,
            packed.num_blocks,
            packed.factors.data_ptr(),
            address_of(self._bias),
            num_outputs,
            panels_a_claim(packed.num_panels, panel_bytes),
            dtype.itemsize,
            packed.zero,
        )
        self._widths = width, packed.num_blocks, dtype.itemsize
        self.num_bytes = packed.num_bytes
        self.row_steps = {SOURCE: self._row_bytes, TARGET: num_outputs * dtype.itemsize}
        self._share = SHARES[packed.layout]
        self.form = GroupedCodes, shape, self._share
        self._kernel, self._rounding, self._looking = Kernel(self._share), Kernel(round_blocks), Kernel(look_up_groups)

    @classmethod
    def of(
        cls, codes: StoredCodes, bias_O: torch.Tensor | None, dtype: torch.dtype, _device: torch.device
    ) -> GroupedCodes:
        return cls(codes.slices(), codes.shape, bias_O, dtype)

    @staticmethod
    def bytes_of(codes: StoredCodes) -> int:
        """That they would take, if groups have minima."""
        num_outputs, width = codes.shape
        num_bytes = -(-width // codes.group) * codes.scale_bytes
        num_bytes += -(-width // (SPAN * BLOCK)) * HALF_BYTES if codes.scale_bytes == 1 else 0
        return num_outputs * (width * codes.bits // 8 + 2 * num_bytes)

    def multiply(self, input: torch.Tensor) -> torch.Tensor:
        input, (num_outputs, _) = input.contiguous(), self.shape
        output = torch.empty(*input.shape[:-1], num_outputs, dtype=self.dtype)
        num_rows, num_threads = output.numel() // num_outputs, torch.get_num_threads()
        records = torch.empty(num_rows * self._row_bytes, dtype=torch.uint8)
        rounding = RoundingFields(input.data_ptr(), records.data_ptr(), num_rows, 0, *self._widths)
        self._rounding.run(ctypes.addressof(rounding), num_threads if records.numel() > ALONE_BYTES else 1)
        fields = Fields(records.data_ptr(), output.data_ptr(), num_rows, 0, *self._constants)
        self._kernel.run(ctypes.addressof(fields), 1 if self._is_small else num_threads)
        return output

    def look_up(self, ids: torch.Tensor) -> torch.Tensor:
        ids, (num_outputs, width) = ids.contiguous(), self.shape
        assert len(ids.ravel()) == 0 or (int(ids.min()) >= 0 and int(ids.max()) < num_outputs), ids
        output = torch.empty(*ids.shape, width, dtype=self.dtype)
        places = (self.packed.address, output.data_ptr(), ids.numel(), 0, width, ids.data_ptr())
        fields = LookingFields(*places, *self.packed.look_up_fields(self.dtype))
        self._looking.run(ctypes.addressof(fields), 1)
        return output

    def ready(self, source: int, rooms: Rooms) -> list[Call]:
        """Rounds the input's rows to records."""
        records = rooms.room("records", self._row_bytes)
        return [Call(round_blocks, (source, records, 0, 0, *self._widths))]

    def call(self, _source: int, target: int, rooms: Rooms) -> Call:
        return Call(self._share, (rooms.room("records", self._row_bytes), target, 0, 0, *self._constants))

    def look_up_call(self, target: int) -> Call:
        places = (self.packed.address, target, 0, 0, self.shape[1], 0)
        return Call(look_up_groups, (*places, *self.packed.look_up_fields(self.dtype)))


def _whole_panels(slices: Iterable[Groups]) -> Iterator[Groups]:
    """The same rows in slices of whole panels, but for the last."""
    rest: Groups | None = None
    for each in slices:
        groups = each if rest is None else joined(rest, each)
        end = len(groups.codes_OI) // PANEL * PANEL
        if end:
            yield rows_of(groups, slice(0, end))
        rest = rows_of(groups, slice(end, None)) if end < len(groups.codes_OI) else None
    if rest is not None:
        yield rest
