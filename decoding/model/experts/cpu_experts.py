"""All chosen experts of a mixture in one parallel region: the calls, and the program that runs them alone.

Rows are sorted by expert, so that each chosen expert's weights are read once for all rows that chose it.
Invariant: the bits of a row depend on the row alone, in any program, on any number of threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Any

import torch
from torch import nn

from decoding.errors import PartRefused
from decoding.kernels.cpu.experts import (
    MOST_MOVES,
    SHARES,
    add_up_floats,
    add_up_halves,
    gather_rows,
    run_chosen,
    sort_rows,
)
from decoding.kernels.cpu.program import MOST_ROWS, SOURCE, TARGET, Call, Program, Rooms, compiled
from decoding.model.experts.gates import GateKernel
from decoding.model.experts.reading import NO_KERNEL
from decoding.model.experts.separate import SeparateExperts, experts_of
from decoding.model.replacing.replacer import Place, Rule
from decoding.weights.linear import Linear, held_by
from decoding.weights.matrix import Matrix, fits_panels

# Shape suffixes: X experts, M rows, E model width, K experts of a row.
TOGETHER = "mixtures of experts in one region"
OTHER_PACKING = "they are not packed alike"
PAIR_BYTES, SHARE_BYTES = 8, 4  # of an int64 and of a float32


class PairRooms:
    """A model's buffers for pairs of a row and one of its experts, which all its mixtures share."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self._rooms: dict[int, Rooms] = {}

    def of(self, num_ranks: int) -> Rooms:
        """With room for so many experts of each row."""
        return self._rooms.setdefault(num_ranks, Rooms(MOST_ROWS * num_ranks, self.dtype))


class _Table:
    """One layer of each expert as calls between rooms of sorted rows."""

    def __init__(self, matrices: Sequence[Matrix], source: int, target: int, rooms: Rooms) -> None:
        calls = [matrix.call(source, target, rooms) for matrix in matrices]
        self.calls = torch.tensor([call.fields for call in calls], dtype=torch.int64)
        self._function = compiled(calls[0].share).address
        row_steps = matrices[0].numbers.row_steps
        moves = [(field, calls[0].fields[field], step) for field, step in row_steps.items()]
        moves += [(0, 0, 0)] * (MOST_MOVES - len(moves))
        num_bytes = self.calls.shape[1] * self.calls.itemsize
        self.words = (self.calls.data_ptr(), num_bytes, len(row_steps), *(n for move in moves for n in move))

    def run(self, chosen: int) -> Call:
        """A program's call. chosen: the address of the chosen experts' numbers."""
        address, num_bytes, *_ = self.words
        return Call(run_chosen, (chosen, address, 0, 0, self._function, num_bytes))


class ExpertCalls:
    """The calls of a mixture, for rows with `num_ranks` experts each. chosen, shares: addresses of rooms for what the
    router says."""

    def __init__(self, experts: SeparateExperts, kernel: GateKernel, num_ranks: int, rooms: Rooms) -> None:
        gates, ups, downs = (_matrices(layers) for layers in (experts.gates, experts.ups, experts.downs))
        self.width, self._inner = downs[0].shape
        self._gate_matrix, self._down_matrix = gates[0], downs[0]
        self._kernel, self._num_ranks, self._rooms = kernel, num_ranks, rooms
        self.chosen, self.shares = rooms.room("chosen", PAIR_BYTES), rooms.room("shares", SHARE_BYTES)
        self._places = rooms.room("places", PAIR_BYTES)
        self._sorted, self._results = rooms.numbers("sorted", self.width), rooms.numbers("results", self.width)
        self._gate, self._up = rooms.numbers("gate", self._inner), rooms.numbers("up", self._inner)
        num_experts = len(experts.gates)
        self._numbers = torch.zeros(1 + num_experts, dtype=torch.int64)  # of the chosen experts, after how many
        self._tables = [
            _Table(gates, self._sorted, self._gate, rooms),
            _Table(ups, self._sorted, self._up, rooms),
            _Table(downs, self._gate, self._results, rooms),
        ]
        self._words = torch.tensor([table.words for table in self._tables], dtype=torch.int64)
        places = (self._numbers.data_ptr(), self._words.data_ptr(), len(self._tables))
        self.sort = Call(sort_rows, (self.chosen, self._places, 0, 0, num_ranks, num_experts, *places))

    def num_distinct(self) -> int:
        return int(self._numbers[0])

    def phases(self, source: int, target: int) -> list[list[Call]]:
        """From routed rows at `source` to their sums at `target`. The first phase sorts."""
        item, num_ranks, numbers = self._rooms.dtype.itemsize, self._num_ranks, self._numbers.data_ptr()
        gate, up, down = (table.run(numbers) for table in self._tables)
        rows = (num_ranks, self.width * item, self._places, 0)
        add_up = add_up_halves if self._rooms.dtype == torch.bfloat16 else add_up_floats
        add = Call(add_up, (self._results, target, 0, 0, num_ranks, self.width, self._places, self.shares))
        joined = self._kernel.call(self._gate, self._up, self._gate, self._inner)
        return [
            [self.sort],
            [Call(gather_rows, (source, self._sorted, 0, 0, *rows))],
            *self._ready(self._gate_matrix, self._sorted),
            [gate, up],
            [joined._replace(rows=num_ranks)],
            *self._ready(self._down_matrix, self._gate),
            [down],
            [add],
        ]

    def _ready(self, matrix: Matrix, source: int) -> list[list[Call]]:
        calls = [call._replace(rows=self._num_ranks) for call in matrix.ready(source, self._rooms)]
        return [calls] if calls else []


class FusedExperts:
    """Runs all chosen experts of a mixture at once, for any number of rows."""

    def __init__(self, experts: SeparateExperts, kernel: GateKernel, rooms: PairRooms) -> None:
        self.num_experts, self.width = len(experts.gates), _matrices(experts.downs)[0].shape[0]
        self._experts, self._kernel, self._rooms = experts, kernel, rooms
        self._calls: dict[int, ExpertCalls] = {}
        self._programs: dict[int, tuple[Program, list[Any]]] = {}

    @property
    def num_ranks(self) -> int:
        """How many experts each row has, once one was run."""
        return max(self._calls)

    def num_distinct(self) -> int:
        """How many experts the last rows chose."""
        return self._calls[self.num_ranks].num_distinct()

    def calls(self, num_ranks: int) -> ExpertCalls:
        """Those for rows with so many experts each."""
        if num_ranks not in self._calls:
            rooms = self._rooms.of(num_ranks)
            self._calls[num_ranks] = ExpertCalls(self._experts, self._kernel, num_ranks, rooms)
        return self._calls[num_ranks]

    def __call__(self, rows_ME: torch.Tensor, chosen_MK: torch.Tensor, shares_MK: torch.Tensor) -> torch.Tensor:
        rows_ME, chosen_MK, shares_MK = rows_ME.contiguous(), chosen_MK.contiguous(), shares_MK.float().contiguous()
        assert chosen_MK.dtype == torch.int64, chosen_MK.dtype
        assert rows_ME.dtype == self._rooms.dtype, rows_ME.dtype
        result_ME = torch.empty_like(rows_ME)
        program, (sort, gather, add) = self._program(chosen_MK.shape[1])
        for start in range(0, len(rows_ME), MOST_ROWS):
            program.begin(min(MOST_ROWS, len(rows_ME) - start))
            sort[SOURCE], gather[SOURCE] = chosen_MK[start:].data_ptr(), rows_ME[start:].data_ptr()
            add[TARGET], add[SHARES] = result_ME[start:].data_ptr(), shares_MK[start:].data_ptr()
            program.run(torch.get_num_threads())
        return result_ME

    def _program(self, num_ranks: int) -> tuple[Program, list[Any]]:
        """With the fields of the calls that sort, gather and add up."""
        if num_ranks not in self._programs:
            phases = self.calls(num_ranks).phases(0, 0)
            program = Program(phases)
            fields = [program.fields_of(call) for call in (phases[0][0], phases[1][0], phases[-1][0])]
            self._programs[num_ranks] = program, fields
        return self._programs[num_ranks]


def together_rule(dtype: torch.dtype, lacks: str) -> Rule:
    """Has the separate experts of each mixture run together. Their layers get panels unless they are packed already;
    lacks: of these."""
    rooms = PairRooms(dtype)
    return Rule(
        TOGETHER,
        lambda place: isinstance(place.module, SeparateExperts),
        lambda place: [_together(place.module, rooms)],
        put=_run_by,
        lacks=lacks,
    )


def _together(experts: Any, rooms: PairRooms) -> FusedExperts:
    if experts.gate_kernel is None:
        raise PartRefused(NO_KERNEL)
    _pack(experts)
    if not _are_alike(experts):
        raise PartRefused(OTHER_PACKING)
    return FusedExperts(experts, experts.gate_kernel, rooms)


def _run_by(place: Place, runner: FusedExperts) -> None:
    experts: Any = place.module
    experts.runner = runner


def _pack(experts: SeparateExperts) -> None:
    for layers in (experts.gates, experts.ups, experts.downs):
        for expert, layer in enumerate(layers):
            if type(layer) is nn.Linear and fits_panels(layer.weight):
                bias_O = None if layer.bias is None else layer.bias.detach()
                layers[expert] = Linear(Matrix.of(layer.weight.detach(), bias_O).in_panels())


def _are_alike(experts: SeparateExperts) -> bool:
    """Whether each matrix is in the same form in all experts, and gate and other half read the same numbers."""
    forms = []
    for layers in (experts.gates, experts.ups, experts.downs):
        held = [held_by(layer) for layer in layers]
        forms.append({None if matrix is None else matrix.form for matrix in held})
    return all(len(each) == 1 and None not in each for each in forms) and forms[0] == forms[1]


def _matrices(layers: nn.ModuleList) -> list[Matrix]:
    found = [held_by(layer) for layer in layers]
    return [matrix for matrix in found if matrix is not None]


def runner_of(module: nn.Module | None) -> FusedExperts | None:
    """What runs a transformers module's experts at once; None if nothing does, or it is another module."""
    experts = None if module is None else experts_of(module)
    return experts.runner if experts is not None and isinstance(experts.runner, FusedExperts) else None


class Mixtures:
    """All mixtures of a model whose experts run together."""

    def __init__(self, mixtures: Sequence[FusedExperts]) -> None:
        self._mixtures = mixtures
        self.num_experts = fmean(each.num_experts for each in mixtures)

    @property
    def num_chosen(self) -> float:
        """Of each token, once a forward ran."""
        return fmean(each.num_ranks for each in self._mixtures)

    def num_distinct(self) -> float:
        """How many experts the last forward read in a mixture."""
        return fmean(each.num_distinct() for each in self._mixtures)
