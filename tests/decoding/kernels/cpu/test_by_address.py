"""Records of arrays that compiled code finds at an address."""

from __future__ import annotations

from typing import NamedTuple

import numba as nb
import numpy as np
import pytest
from numba.core.errors import TypingError
from numpy.typing import NDArray

from decoding.kernels.cpu.by_address import Kept, Layout


class Inner(NamedTuple):
    grid: NDArray[np.float32]  # [n, 2]
    scale: float
    is_on: bool


class Outer(NamedTuple):
    counts: NDArray[np.int64]
    inner: Inner


def outer(num_rows: int, scale: float = 2.0) -> Outer:
    return Outer(np.zeros(2, np.int64), Inner(np.ones((num_rows, 2), np.float32), scale, True))


LAYOUT = Layout(outer(1))
read, _write = LAYOUT.read, LAYOUT.write


@nb.njit
def write(at: int, record: Outer) -> None:
    _write(at, record)


_write_inner = LAYOUT.write_field("inner")


@nb.njit
def write_inner(at: int, inner: Inner) -> None:
    _write_inner(at, inner)


@nb.njit
def work(at: int) -> float:
    """Count the call, and sum what the record holds."""
    record = read(at)
    record.counts[0] += 1
    kept = record.inner.grid[1:]
    return float(record.inner.scale * kept.sum()) if record.inner.is_on else 0.0


def test_compiled_code_reads_and_writes_what_is_kept() -> None:
    record = outer(4)
    kept = Kept(LAYOUT, write, record)
    assert work(kept.address) == 2.0 * 6
    assert work(kept.address) == 2.0 * 6
    assert record.counts.tolist() == [2, 0]


def test_a_replaced_array_is_found_once_the_record_is_kept_again() -> None:
    kept = Kept(LAYOUT, write, outer(4))
    address = kept.address
    kept.keep(kept.record._replace(inner=Inner(np.full((2, 2), 5, np.float32), 3.0, True)))
    assert kept.address == address
    assert work(address) == 3.0 * 10


def test_arrays_outlive_any_number_of_calls() -> None:
    kept = Kept(LAYOUT, write, outer(1000))
    for _ in range(1000):
        work(kept.address)
    assert kept.record.inner.grid.sum() == 2000


def test_a_record_of_other_types_is_refused() -> None:
    wrong = Outer(np.zeros(2, np.int32), Inner(np.ones((1, 2), np.float32), 2.0, True))  # type: ignore[arg-type]
    with pytest.raises(TypingError, match="cannot be kept"):
        Kept(LAYOUT, write, wrong)


def test_a_field_is_written_alone() -> None:
    record = outer(4)
    kept = Kept(LAYOUT, write, record)
    work(kept.address)
    inner = Inner(np.full((2, 2), 5, np.float32), 3.0, True)
    write_inner(kept.address, inner)
    assert work(kept.address) == 3.0 * 10
    assert record.counts.tolist() == [2, 0]


def test_a_field_of_other_types_is_refused() -> None:
    kept = Kept(LAYOUT, write, outer(1))
    with pytest.raises(TypingError, match="inner of"):
        write_inner(kept.address, np.zeros(2))  # type: ignore[arg-type]
