"""One compiled function on all of torch's threads at once.

A pool of threads beside torch's would wait for work on the cores that torch's threads wait on. So work goes to the
team of OpenMP threads that torch has started for the calling thread, by the entry that compilers make for a parallel
region. Knows nothing of the work. Invariant: a call returns when every thread has.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import llvmlite.binding  # type: ignore[import-untyped]
import numba as nb
import torch
from numba import types

SHARE = types.void(types.CPointer(types.int64))  # of the fields of a call, that all threads share


@cache
def compiled(share: Callable[[Any], None]) -> Any:
    """A module's function as one that threads can run, and which numba's cache keeps."""
    llvmlite.binding.initialize_native_asmparser()  # some kernels name an instruction
    return nb.cfunc(SHARE, cache=True)(share)


class Team:
    """Runs one function, whose calls say what to do in int64 fields."""

    def __init__(self, share: Callable[[Any], None]) -> None:
        self._kept = compiled(share)
        self._address = self._kept.address
        self._alone = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(self._address)
        self._together = _parallel_region()

    def run(self, fields: int, num_threads: int) -> None:
        """Every thread runs the function once; without the interpreter's lock. fields: an address."""
        if num_threads > 1 and self._together is not None:
            self._together(self._address, fields, num_threads, 0)
        else:
            self._alone(fields)


@contextmanager
def one_thread() -> Iterator[None]:
    """Have torch work on the calling thread alone."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(num_threads)


@cache
def barrier_address() -> int:
    """Of the function in which threads of a running call wait for each other; 0 if they never are several."""
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
    """The OpenMP library that torch runs on; None if it has another kind of threads."""
    try:
        library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))  # and what that one needs
        return library if library.GOMP_parallel and library.GOMP_barrier else None
    except (OSError, AttributeError):
        return None
