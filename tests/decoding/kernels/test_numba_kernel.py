"""A kernel gives what its Python text gives, alone and within others, and becomes machine code once."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from numba.core.caching import NullCache
from numba.core.errors import NumbaError
from numpy.typing import NDArray

from decoding.kernels.cache import PACKAGE
from decoding.kernels.numba_kernel import kernel

SCALAR = r"None|int|float|bool|np\.\w+|tuple\[(int|float|bool|np\.\w+)(, (int|float|bool))*\]"


class Refused(Exception):
    """Raised by a kernel."""


class Pair(NamedTuple):
    numbers: NDArray[np.int32]
    factor: float


@kernel(forceinline=True, borrows=True)
def scaled(pair: Pair, place: int) -> float:
    return pair.numbers[place] * pair.factor


@kernel(borrows=True)
def ends(pair: Pair) -> float:
    return scaled(pair, 0) + scaled(pair, 1) + scaled(pair, pair.numbers[0]) + scaled(pair, len(pair.numbers) - 1)


class Span(NamedTuple):
    start: np.int32
    size: int


@kernel
def end_of(span: Span) -> int:
    return span.start + span.size


@kernel
def last_end(numbers: NDArray[np.int32]) -> int:
    return end_of(Span(numbers[-1], 1)) + end_of(Span(numbers[0], len(numbers)))


@kernel
def checked(number: int) -> int:
    if number < 0:
        raise Refused(number)
    return number


@kernel
def doubled(number: int) -> int:
    return checked(number) * 2


@kernel
def tail_of(numbers: NDArray[np.int32], start: int) -> NDArray[np.int32]:
    return numbers[start:].copy()


@kernel
def last_of(numbers: NDArray[np.int32]) -> int:
    return tail_of(numbers, len(numbers) - 1)[0]


@kernel(borrows=True)
def copied(numbers: NDArray[np.int32]) -> int:
    return numbers.copy()[0]


def test_a_kernel_gives_the_same_alone_and_within_another() -> None:
    pair = Pair(np.array([2, 5, 7, 11], np.int32), 0.5)
    assert ends(pair) == ends.py_func(pair) == 1.0 + 2.5 + 3.5 + 5.5
    assert scaled(pair, 3) == scaled.py_func(pair, 3) == 5.5
    assert last_of(pair.numbers) == 11
    assert last_end(pair.numbers) == last_end.py_func(pair.numbers) == 12 + 6


def test_what_another_kernel_calls_is_compiled_once_for_all_constants_and_widths(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ends, "_cache", NullCache())  # in which it may be whole, from an earlier run
    num_compiled = len(scaled._linked.overloads)
    ends(Pair(np.ones(4, np.int16), 1.0))
    assert len(scaled._linked.overloads) == num_compiled + 1
    before = len(doubled.overloads), len(checked.overloads)
    doubled(3)
    assert (len(doubled.overloads), len(checked.overloads)) == (before[0] or 1, before[1])


def test_what_a_called_kernel_raises_reaches_python() -> None:
    with pytest.raises(Refused, match="-3"):
        doubled(-3)
    assert doubled(3) == 6


def test_a_kernel_that_borrows_may_not_make_an_array() -> None:
    with pytest.raises(NumbaError, match="NRT required"):
        copied(np.ones(2, np.int32))


def test_kernels_that_borrow_return_no_arrays_and_call_no_kernels_that_do() -> None:
    """Whose references nobody would give back."""
    functions = [
        (path, function, ast.unparse(decorator))
        for path in PACKAGE.rglob("*.py")
        for function in ast.parse(path.read_text()).body
        if isinstance(function, ast.FunctionDef)
        for decorator in function.decorator_list
        if re.match(r"kernel|register_jitable|nb\.njit", ast.unparse(decorator))
    ]
    borrowing = [(path, function) for path, function, decorator in functions if "borrows" in decorator]
    makers = {function.name for _, function, _ in functions if not _is_scalar(function)} - _same_names(functions)
    assert len(borrowing) > 100
    for path, function in borrowing:
        assert _is_scalar(function), (path, function.name)
        called = {node.func.id for node in ast.walk(function) if isinstance(node, ast.Call) and _is_name(node.func)}
        assert not called & makers, (path, function.name, called & makers)


def _is_name(node: ast.expr) -> bool:
    return isinstance(node, ast.Name)


def _is_scalar(function: ast.FunctionDef) -> bool:
    return function.returns is not None and re.fullmatch(SCALAR, ast.unparse(function.returns)) is not None


def _same_names(functions: list[tuple[Path, ast.FunctionDef, str]]) -> set[str]:
    """Names that several functions have, some of which return numbers."""
    return {function.name for _, function, _ in functions if _is_scalar(function)}
