"""Compiled functions on all threads of a `Team`: one alone, or several as one program.

In a program threads wait for each other only where a phase ends. Knows nothing of the work.
Invariant: a call returns when its pieces are done, and a phase begins when all pieces of the one before are.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple

import llvmlite.binding  # type: ignore[import-untyped]
import numba as nb
import numpy as np
import torch
from numba import types
from numpy.typing import NDArray

from decoding.kernels.cpu.team import team

SHARE = types.void(types.CPointer(types.int64))  # takes the address of a call's fields, which all threads share


@cache
def compiled(share: Callable[[Any], None]) -> Any:
    """Compile a module's function for threads to run; numba caches it."""
    llvmlite.binding.initialize_native_asmparser()  # some kernels hold inline assembly
    return nb.cfunc(SHARE, cache=True)(share)


@contextmanager
def one_thread() -> Iterator[None]:
    """Limit torch to the calling thread."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(num_threads)


def words_of(phases: Sequence[Sequence[tuple[int, int]]]) -> NDArray[np.int64]:
    """A program as `Team` runs it: the number of phases; the place of each phase's first call, and where the last ends;
    then the calls, each the addresses of a function and of its fields."""
    ends = np.cumsum([0, *(2 * len(phase) for phase in phases)]) + 2 + len(phases)
    return np.array([len(phases), *ends, *(number for phase in phases for call in phase for number in call)], np.int64)


class Kernel:
    """Runs one function. The int64 fields of a call say what it has to do."""

    def __init__(self, share: Callable[[Any], None]) -> None:
        self._kept = compiled(share)
        self._address = self._kept.address
        self._alone = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(self._address)

    def run(self, fields: int, num_threads: int) -> None:
        """Have up to so many threads run the function, without Python's GIL. fields: the address of the call's
        fields."""
        if num_threads == 1:
            self._alone(fields)
            return
        words = np.array([1, 3, 5, self._address, fields])
        team().run(words.ctypes.data, num_threads)


SOURCE, TARGET, NUM_ROWS, COUNTER = range(4)  # the first fields of every call
MOST_ROWS = 512  # the most tokens of a forward that runs as one program: trees of many requests, part of a prompt


class Call(NamedTuple):
    """One call of a function. share: what each thread runs. fields: their values at the start, with no rows and a
    counter of 0. rows: the call's rows for each token of the step."""

    share: Callable[[Any], None]
    fields: tuple[int, ...]
    rows: int = 1


class Rooms:
    """Buffers that hold rows between two calls, for up to `num_rows`. Programs that never run at the same time share
    them."""

    def __init__(self, num_rows: int, dtype: torch.dtype) -> None:
        """dtype: of the model's activations."""
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
    """Phases of calls. `begin` resets the fields of all calls to their values at the start."""

    def __init__(self, phases: Sequence[Sequence[Call]]) -> None:
        calls = [call for phase in phases for call in phase]
        shares = [call.share for call in calls]
        self._calls = sorted(calls, key=lambda call: shares.index(call.share))  # calls of one function are neighbours
        self._blank = np.zeros((len(calls), max(len(call.fields) for call in calls)), np.int64)
        self._rows = np.array([call.rows for call in self._calls])
        for row, call in zip(self._blank, self._calls, strict=True):
            row[: len(call.fields)] = call.fields
        self._fields = self._blank.copy()
        self._words = words_of(
            [[(compiled(call.share).address, self.fields_of(call).ctypes.data) for call in phase] for phase in phases]
        )
        self._address: int = self._words.ctypes.data

    def fields_of(self, call: Call) -> NDArray[np.int64]:
        """The fields of one call, for writing between `begin` and `run`."""
        fields: NDArray[np.int64] = self._fields[next(row for row, each in enumerate(self._calls) if each is call)]
        return fields

    def fields_of_all(self, share: Callable[[Any], None]) -> NDArray[np.int64]:
        """[calls, fields]: the fields of all calls of a function, in order."""
        rows = [row for row, call in enumerate(self._calls) if call.share is share]
        return self._fields[rows[0] : rows[-1] + 1]

    def begin(self, num_rows: int) -> None:
        """Reset the fields for a run on `num_rows` tokens."""
        self._fields[:] = self._blank
        np.multiply(self._rows, num_rows, out=self._fields[:, NUM_ROWS])

    def run(self, num_threads: int) -> None:
        team().run(self._address, num_threads)
