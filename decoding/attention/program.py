# ruff: noqa: ARG001 - an intrinsic receives the types of its arguments, which the signature fixes anyway
"""Compiled functions one after another in one call: a thread that has done its share waits only where a phase ends.

Knows nothing of what the functions do. Invariant: a phase begins when every thread has left the one before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numba as nb
import numpy as np
import torch
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.extending import intrinsic
from numpy.typing import NDArray

from decoding.attention.team import Team, barrier_address, compiled

SOURCE, TARGET, NUM_ROWS, COUNTER = range(4)  # how the fields of every call begin
MOST_ROWS = 512  # of a model's forward that is one program: trees of many requests, a good part of a prompt
NUM_STEPS = 0  # of the program's own fields; after it an address of a function and one of its fields for each step


class Call(NamedTuple):
    """share: of one thread; fields: with no rows and the counter at 0; rows: how many of its rows one row makes."""

    share: Callable[[Any], None]
    fields: tuple[int, ...]
    rows: int = 1


class Rooms:
    """Addresses of rows between two calls, for up to `num_rows`; programs that never run at once share them."""

    def __init__(self, num_rows: int, dtype: torch.dtype) -> None:
        """dtype: of a model's numbers."""
        self.num_rows, self.dtype = num_rows, dtype
        self._rooms: dict[tuple[str, int], torch.Tensor] = {}

    def room(self, name: str, row_bytes: int) -> int:
        known = self._rooms.get((name, row_bytes))
        if known is None:
            known = self._rooms[name, row_bytes] = torch.zeros(self.num_rows * row_bytes, dtype=torch.uint8)
        return known.data_ptr()

    def numbers(self, name: str, width: int) -> int:
        return self.room(name, width * self.dtype.itemsize)


class Program:
    """Phases of calls, whose fields are as they were given again before each run."""

    def __init__(self, phases: Sequence[Sequence[Call]]) -> None:
        calls = [call for phase in phases for call in phase]
        shares = [call.share for call in calls]
        self._calls = sorted(calls, key=lambda call: shares.index(call.share))  # those of one function side by side
        self._blank = np.zeros((len(calls), max(len(call.fields) for call in calls)), np.int64)
        self._rows = np.array([call.rows for call in self._calls])
        for row, call in zip(self._blank, self._calls, strict=True):
            row[: len(call.fields)] = call.fields
        self._fields = self._blank.copy()
        steps: list[tuple[int, int]] = []
        for phase in phases:
            if steps and barrier_address():
                steps.append((barrier_address(), 0))
            steps += [(compiled(call.share).address, self.fields_of(call).ctypes.data) for call in phase]
        self._steps: NDArray[np.int64] = np.array([len(steps), *(number for step in steps for number in step)])
        self._address: int = self._steps.ctypes.data
        self._team = Team(run_steps)

    def fields_of(self, call: Call) -> NDArray[np.int64]:
        """Of one of the calls, which may be written between `begin` and `run`."""
        fields: NDArray[np.int64] = self._fields[next(row for row, each in enumerate(self._calls) if each is call)]
        return fields

    def fields_of_all(self, share: Callable[[Any], None]) -> NDArray[np.int64]:
        """The same of all calls of a function, in order: [calls, fields]."""
        rows = [row for row, call in enumerate(self._calls) if call.share is share]
        return self._fields[rows[0] : rows[-1] + 1]

    def begin(self, num_rows: int) -> None:
        """Have the next run work on so many rows."""
        self._fields[:] = self._blank
        np.multiply(self._rows, num_rows, out=self._fields[:, NUM_ROWS])

    def run(self, num_threads: int) -> None:
        self._team.run(self._address, num_threads)


@intrinsic
def _call(_context: Any, function: Any, argument: Any) -> Any:
    """Call what is at an address."""

    def codegen(context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        kind = ir.FunctionType(ir.VoidType(), [ir.IntType(64)])
        builder.call(builder.inttoptr(values[0], kind.as_pointer()), [values[1]])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), codegen


@nb.njit(cache=True)
def _run_steps(num_steps: int, steps: Any) -> None:
    for step in range(num_steps):
        _call(steps[1 + 2 * step], steps[2 + 2 * step])


def run_steps(fields: Any) -> None:
    """One thread's share of a program."""
    num_steps = fields[NUM_STEPS]
    _run_steps(num_steps, nb.carray(fields, 1 + 2 * num_steps))
