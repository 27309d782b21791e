"""Linear layers and embeddings whose weights stay packed in small integers, see `Layout`.

Knows no file formats and no rounding of weights. Invariant: only the packed matrix is kept, once; an embedding and a
head that are tied share it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Iterator

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from decoding.kernels.cpu.products.grouped.layout import BLOCK, ROW_RECORD, STEPS, Layout
from decoding.kernels.cpu.products.grouped.lookup import NUM_FIELDS as NUM_LOOKING_FIELDS
from decoding.kernels.cpu.products.grouped.lookup import look_up_groups
from decoding.kernels.cpu.products.grouped.multiplying import NUM_FIELDS, SHARES
from decoding.kernels.cpu.products.grouped.packing import pack_codes
from decoding.kernels.cpu.products.grouped.records import NUM_FIELDS as NUM_ROUNDING_FIELDS
from decoding.kernels.cpu.products.grouped.records import round_blocks
from decoding.kernels.cpu.products.panels import PANEL
from decoding.kernels.cpu.program import MOST_ROWS, SOURCE, TARGET, Call, Rooms, Team
from decoding.model.linear.groups import Groups
from decoding.model.linear.panels import ALONE_BYTES, panels_a_claim

# Shape suffixes: M rows, O outputs, I input width, G groups; P panels, B blocks, S steps, N bytes.
HAS_MINIMA = -1  # instead of a zero point
LARGEST_EXPONENT = 14  # of a row's scales and minima as float16, after its factor is taken out
Fields = ctypes.c_int64 * NUM_FIELDS
RoundingFields = ctypes.c_int64 * NUM_ROUNDING_FIELDS
LookingFields = ctypes.c_int64 * NUM_LOOKING_FIELDS


class PackedGroups:
    """A matrix [O, I] in panels, packed from slices of its rows, which have the same bits and group.

    Scales and minima are kept as float16, times a power of two for each output. If every minimum is the scale times
    one zero point, only that is kept.
    """

    def __init__(self, slices: Iterable[Groups], shape: tuple[int, int]) -> None:
        self.shape = shape
        self.num_panels, self.num_blocks = -(-shape[0] // PANEL), -(-shape[1] // BLOCK)
        self.factors = torch.ones(self.num_panels * PANEL)
        num_packed = 0
        for groups in _whole_panels(slices):
            if num_packed == 0:
                self.layout = Layout(groups.bits, groups.group)
                self.zero = zero_point(groups.scales_OG, groups.minima_OG, groups.bits)
                self._packed = self._room()
            if self.zero != HAS_MINIMA and not _has_zero_point(groups.scales_OG, groups.minima_OG, self.zero):
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
        return self.layout.code_bytes + self.layout.pair_bytes * (2 if self.zero == HAS_MINIMA else 1)

    @property
    def num_bytes(self) -> int:
        return self._packed.numel() + 4 * len(self.factors)

    def look_up_fields(self, dtype: torch.dtype) -> tuple[int, ...]:
        """The fields of a call of `look_up_groups` after its ids."""
        layout = self.layout
        places = (self.record, self.num_blocks, self.factors.data_ptr())
        return (*places, dtype.itemsize, self.zero, layout.bits, layout.group)

    def _room(self) -> torch.Tensor:
        return torch.zeros(self.num_panels, self.num_blocks, self.record, dtype=torch.uint8)

    def _store(self, groups: Groups, first: int) -> None:
        """Pack the rows from `first` on, a multiple of `PANEL`."""
        num_outputs, width = groups.codes_OI.shape
        panels = self._packed[first // PANEL : -(-(first + num_outputs) // PANEL)]
        num_more = (self.num_blocks * BLOCK - width, len(panels) * PANEL - num_outputs)
        codes_OI = functional.pad(groups.codes_OI, (0, num_more[0], 0, num_more[1])).contiguous()
        words_OBS = codes_OI.numpy().view(np.uint32).reshape(-1, self.num_blocks, STEPS)
        pack_codes(words_OBS, self.layout.bits, panels.numpy().view(np.uint32))
        pairs = (groups.scales_OG, groups.minima_OG) if self.zero == HAS_MINIMA else (groups.scales_OG,)
        factors_O = factors_of(pairs)
        self.factors[first : first + num_outputs] = factors_O
        start = self.layout.code_bytes
        for numbers_OG in pairs:
            padded = torch.zeros(len(codes_OI), self.num_blocks * self.layout.num_groups, dtype=torch.float16)
            padded[:num_outputs, : numbers_OG.shape[1]] = numbers_OG / factors_O[:, None]
            halves = padded.view(-1, PANEL, self.num_blocks, self.layout.num_groups).permute(0, 2, 3, 1)
            end = start + self.layout.pair_bytes
            panels[:, :, start:end] = halves.contiguous().view(torch.uint8).flatten(2)
            start = end

    def _keep_minima(self, num_packed: int) -> None:
        """Write the minima of what is packed, since they are not all one zero point times the scale."""
        packed, zero, pair_bytes = self._packed, self.zero, self.layout.pair_bytes
        old_record, self.zero = self.record, HAS_MINIMA
        self._packed = self._room()
        for panel in range(num_packed // PANEL):
            self._packed[panel, :, :old_record] = packed[panel]
            scales = packed[panel, :, old_record - pair_bytes :].contiguous().view(torch.float16).float()
            minima = (scales * zero / 2**8).half()
            halves = (scales / 2**8).half()
            self._packed[panel, :, old_record:] = minima.view(torch.uint8)
            self._packed[panel, :, old_record - pair_bytes : old_record] = halves.view(torch.uint8)
        self.factors[:num_packed] *= 2**8


class GroupedLinear(nn.Module):
    """Replaces an `nn.Linear` whose inputs and outputs are `dtype`, float32 or bfloat16."""

    def __init__(
        self, slices: Iterable[Groups], shape: tuple[int, int], bias_O: torch.Tensor | None, dtype: torch.dtype
    ) -> None:
        """slices: the rows of the matrix in order, packed one by one; all of the same bits and group."""
        super().__init__()
        self.out_features, self.in_features = self.shape = shape
        self.weight = torch.empty(0, dtype=dtype)  # modelling code reads its dtype and device
        self.packed = packed = PackedGroups(slices, shape)
        self._dtype = dtype
        self._bias = None if bias_O is None else torch.zeros(packed.num_panels * PANEL)
        if self._bias is not None and bias_O is not None:
            self._bias[: self.out_features] = bias_O
        self._row_bytes = packed.num_blocks * ROW_RECORD
        panel_bytes = packed.num_blocks * packed.record
        self._is_small = packed.num_panels * panel_bytes < ALONE_BYTES
        self._constants = (
            packed.address,
            packed.record,
            packed.num_blocks,
            packed.factors.data_ptr(),
            0 if self._bias is None else self._bias.data_ptr(),
            self.out_features,
            panels_a_claim(packed.num_panels, panel_bytes),
            dtype.itemsize,
            packed.zero,
        )
        self.num_bytes = packed.num_bytes
        self.few_rows = MOST_ROWS  # the most rows of a program
        self.row_steps = {SOURCE: self._row_bytes, TARGET: self.out_features * dtype.itemsize}
        self._share = SHARES[packed.layout.bits, packed.layout.group]
        self._team, self._rounding = Team(self._share), Team(round_blocks)

    def __call__(self, input: torch.Tensor) -> torch.Tensor:  # skips nn.Module's hooks, which cost microseconds
        input = input.contiguous()
        output = torch.empty(*input.shape[:-1], self.out_features, dtype=self._dtype)
        num_rows, num_threads = output.numel() // self.out_features, torch.get_num_threads()
        records = torch.empty(num_rows * self._row_bytes, dtype=torch.uint8)
        rounding = RoundingFields(input.data_ptr(), records.data_ptr(), num_rows, 0, *self._widths())
        self._rounding.run(ctypes.addressof(rounding), num_threads if records.numel() > ALONE_BYTES else 1)
        fields = Fields(records.data_ptr(), output.data_ptr(), num_rows, 0, *self._constants)
        self._team.run(ctypes.addressof(fields), 1 if self._is_small else num_threads)
        return output

    def ready(self, source: int, rooms: Rooms) -> list[Call]:
        """A program's call that rounds the input's rows to records."""
        records = rooms.room("records", self._row_bytes)
        return [Call(round_blocks, (source, records, 0, 0, *self._widths()))]

    def call(self, _source: int, target: int, rooms: Rooms) -> Call:
        """A program's call that multiplies the records from `ready`."""
        return Call(self._share, (rooms.room("records", self._row_bytes), target, 0, 0, *self._constants))

    def _widths(self) -> tuple[int, int, int]:
        return self.in_features, self.packed.num_blocks, self._dtype.itemsize


class GroupedEmbedding(nn.Module):
    """Replaces an `nn.Embedding`: looks up rows of a layer's matrix, in the layer's dtype."""

    def __init__(self, linear: GroupedLinear) -> None:
        super().__init__()
        self.num_embeddings, self.embedding_dim = linear.shape
        self.weight = torch.empty(0, dtype=linear.weight.dtype)  # modelling code reads its dtype and device
        self.packed = linear.packed
        self._team = Team(look_up_groups)

    def __call__(self, input: torch.Tensor) -> torch.Tensor:
        """int64 [...] to [..., E]"""
        ids, dtype = input.contiguous(), self.weight.dtype
        assert len(ids.ravel()) == 0 or (int(ids.min()) >= 0 and int(ids.max()) < self.num_embeddings), ids
        output = torch.empty(*ids.shape, self.embedding_dim, dtype=dtype)
        places = (self.packed.address, output.data_ptr(), ids.numel(), 0, self.embedding_dim, ids.data_ptr())
        fields = LookingFields(*places, *self.packed.look_up_fields(dtype))
        self._team.run(ctypes.addressof(fields), 1)
        return output

    def call(self, target: int) -> Call:
        """A program's call that looks up the ids, whose address each step writes into the field `IDS`."""
        places = (self.packed.address, target, 0, 0, self.embedding_dim, 0)
        return Call(look_up_groups, (*places, *self.packed.look_up_fields(self.weight.dtype)))


def _whole_panels(slices: Iterable[Groups]) -> Iterator[Groups]:
    """The same rows in slices of whole panels, but for the last."""
    rest: Groups | None = None
    for each in slices:
        groups = each if rest is None else _joined(rest, each)
        end = len(groups.codes_OI) // PANEL * PANEL
        if end:
            yield _rows(groups, slice(0, end))
        rest = _rows(groups, slice(end, None)) if end < len(groups.codes_OI) else None
    if rest is not None:
        yield rest


def _joined(one: Groups, other: Groups) -> Groups:
    assert (one.bits, one.group) == (other.bits, other.group), (one.bits, one.group, other.bits, other.group)
    codes_OI = torch.cat((one.codes_OI, other.codes_OI))
    scales_OG, minima_OG = torch.cat((one.scales_OG, other.scales_OG)), torch.cat((one.minima_OG, other.minima_OG))
    return Groups(codes_OI, scales_OG, minima_OG, one.bits, one.group)


def _rows(groups: Groups, rows: slice) -> Groups:
    return Groups(groups.codes_OI[rows], groups.scales_OG[rows], groups.minima_OG[rows], groups.bits, groups.group)


def zero_point(scales_OG: torch.Tensor, minima_OG: torch.Tensor, bits: int) -> int:
    """The zero point of all groups; `HAS_MINIMA` if there is none."""
    place = int((scales_OG != 0).flatten().byte().argmax())  # that has a scale
    ratio = float(minima_OG.flatten()[place] / scales_OG.flatten()[place])
    zero = round(ratio) if 0 <= ratio < 2**bits else 0
    return zero if _has_zero_point(scales_OG, minima_OG, zero) else HAS_MINIMA


def _has_zero_point(scales_OG: torch.Tensor, minima_OG: torch.Tensor, zero: int) -> bool:
    return torch.equal(minima_OG, scales_OG * zero)


def factors_of(pairs: Iterable[torch.Tensor]) -> torch.Tensor:
    """[O]: powers of two that bring each row's largest number near the end of float16's range."""
    largest_O = torch.stack([each_OG.abs().amax(1) for each_OG in pairs]).amax(0)
    exponents_O = torch.frexp(largest_O).exponent - LARGEST_EXPONENT
    return torch.where(largest_O > 0, torch.ldexp(torch.ones_like(largest_O), exponents_O.clamp(-120, 120)), 1.0)
