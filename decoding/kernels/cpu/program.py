# ruff: noqa: ARG001 - an intrinsic receives the types of its arguments, which the signature fixes anyway
"""Compiled functions on all of torch's threads at once: one alone, or several as one program.

A second pool of threads would compete with torch's threads for the cores. So functions run on the OpenMP threads that
torch started for the calling thread, through GOMP_parallel, the entry that compilers emit for a parallel region. In a
program threads wait for each other only where a phase ends. Knows nothing of the work.
Invariant: a call returns when every thread has returned, and a phase begins when every thread has left the one before.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import llvmlite.binding  # type: ignore[import-untyped]
import numba as nb
import numpy as np
import torch
from llvmlite import ir
from numba import types
from numba.extending import intrinsic
from numpy.typing import NDArray

SHARE = types.void(types.CPointer(types.int64))  # takes the address of a call's fields, which all threads share


@cache
def compiled(share: Callable[[Any], None]) -> Any:
    """Compile a module's function for threads to run; numba caches it."""
    llvmlite.binding.initialize_native_asmparser()  # some kernels hold inline assembly
    return nb.cfunc(SHARE, cache=True)(share)


class Team:
    """Runs one function. The int64 fields of a call say what it has to do."""

    def __init__(self, share: Callable[[Any], None]) -> None:
        self._kept = compiled(share)
        self._address = self._kept.address
        self._alone = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(self._address)
        self._together = _parallel_region()

    def run(self, fields: int, num_threads: int) -> None:
        """Have every thread run the function once, without Python's GIL. fields: the address of the call's fields."""
        if num_threads > 1 and self._together is not None:
            self._together(self._address, fields, num_threads, 0)
        else:
            self._alone(fields)


@contextmanager
def one_thread() -> Iterator[None]:
    """Limit torch to the calling thread."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(num_threads)


@cache
def barrier_address() -> int:
    """The address of the function in which the threads of a call wait for each other; 0 if calls never have several."""
    library = _openmp()
    return 0 if library is None else ctypes.cast(library.GOMP_barrier, ctypes.c_void_p).value or 0


@cache
def _parallel_region() -> Any:
    library = _openmp()
    if library is None:
        return None
    region = library.GOMP_parallel
    region.argtypes, region.restype = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint], None
    return region


@cache
def _openmp() -> ctypes.CDLL | None:
    """The OpenMP library that torch runs on; None if torch uses other threads."""
    try:
        library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))  # and its dependencies
        return library if library.GOMP_parallel and library.GOMP_barrier else None
    except (OSError, AttributeError):
        return None


SOURCE, TARGET, NUM_ROWS, COUNTER = range(4)  # the first fields of every call
MOST_ROWS = 512  # the most tokens of a forward that runs as one program: trees of many requests, part of a prompt
NUM_STEPS = 0  # the first of the program's own fields; then for each step the addresses of a function and of its fields


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
        steps: list[tuple[int, int]] = []
        for phase in phases:
            if steps and barrier_address():
                steps.append((barrier_address(), 0))
            steps += [(compiled(call.share).address, self.fields_of(call).ctypes.data) for call in phase]
        self._steps: NDArray[np.int64] = np.array([len(steps), *(number for step in steps for number in step)])
        self._address: int = self._steps.ctypes.data
        self._team = Team(run_steps)

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
        self._team.run(self._address, num_threads)


@intrinsic
def call_at(_context: Any, function: Any, argument: Any) -> Any:
    """Call the function at an address."""

    def codegen(context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        kind = ir.FunctionType(ir.VoidType(), [ir.IntType(64)])
        builder.call(builder.inttoptr(values[0], kind.as_pointer()), [values[1]])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), codegen


@nb.njit(cache=True)
def _run_steps(num_steps: int, steps: Any) -> None:
    for step in range(num_steps):
        call_at(steps[1 + 2 * step], steps[2 + 2 * step])


def run_steps(fields: Any) -> None:
    """One thread's share of a program. fields: address of the program's own fields."""
    num_steps = fields[NUM_STEPS]
    _run_steps(num_steps, nb.carray(fields, 1 + 2 * num_steps))
