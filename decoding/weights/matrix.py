"""A matrix of weights: the one type that files give, that is rounded and packed, and that layers hold.

Knows kinds by their records, and no file, model or module. Invariant: whatever place its numbers are in, they are those
that its kind's unpacking gives, but for the rounding of scales to float16 where kernels read them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import torch
from torch.nn import functional

from decoding.kernels.cpu.products.panels import PANEL, STEP_BYTES
from decoding.kernels.cpu.program import Call, Rooms
from decoding.kernels.processor import multiplies_halves, multiplies_in_tiles
from decoding.weights.groups import widened
from decoding.weights.kinds import FLOAT32, KINDS, Kind, of_floats
from decoding.weights.numbers.float_panels import FloatPanels
from decoding.weights.numbers.floats import Floats
from decoding.weights.numbers.numbers import Numbers
from decoding.weights.numbers.stored_codes import StoredCodes

# Shape suffixes: M rows, O outputs, I input width, S stored columns.
FEWEST_OUTPUTS = PANEL  # smaller layers, such as routers of experts, are not rounded
ROUNDED = 1 << 18  # weights that are rounded at a time, so that the search stays in the caches


@dataclass(frozen=True, slots=True)
class Target:
    """Where weights go. is_packed: small integers stay packed. by_triton: so that Triton's kernels multiply them."""

    dtype: torch.dtype
    device: torch.device
    is_packed: bool
    by_triton: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Matrix:
    """Weights [O, I]; floats may have any number of dimensions.

    columns_S: the input that each stored column is for, where columns lie in another order; `I`, one more than there
    are, for one that fills a group and is for none. bias_O: added to products.
    """

    shape: tuple[int, ...]
    kind: Kind
    numbers: Numbers
    columns_S: torch.Tensor | None = None
    bias_O: torch.Tensor | None = None

    @classmethod
    def of(cls, weight_OI: torch.Tensor, bias_O: torch.Tensor | None = None) -> Matrix:
        """Of a tensor of floats, which it shares."""
        kind = of_floats(str(weight_OI.dtype).removeprefix("torch."))
        return cls(tuple(weight_OI.shape), kind, Floats.of_tensor(weight_OI, bias_O), bias_O=bias_O)

    @classmethod
    def of_floats(cls, shape: tuple[int, ...], read: Callable[[], torch.Tensor], kind: Kind = KINDS[FLOAT32]) -> Matrix:
        """Of what a file has. read: all of it, in any dtype."""
        return cls(shape, kind, Floats(shape, read))

    @classmethod
    def of_codes(
        cls, kind: Kind, shape: tuple[int, int], codes: StoredCodes, order_I: torch.Tensor | None = None
    ) -> Matrix:
        """order_I: the input of which each column is, where columns were sorted into groups."""
        return cls(shape, kind, codes, widened(shape[1], kind.group, order_I))

    @property
    def dtype(self) -> torch.dtype:
        return self.numbers.dtype

    @property
    def device(self) -> torch.device:
        return self.numbers.device

    @property
    def nbytes(self) -> int:
        """That it takes where it is. The bias is not counted."""
        return self.numbers.num_bytes

    def nbytes_in(self, target: Target) -> int:
        """That it would take there."""
        if self.kind.is_float or not target.is_packed:
            return prod(self.shape) * target.dtype.itemsize
        num_bytes: int = self.kind.packing(target.by_triton).bytes_of(self.numbers)
        return num_bytes

    def rows(self, input: torch.Tensor) -> torch.Tensor:
        """Multiply rows: [..., I] to [..., O]."""
        return self.numbers.multiply(self._gathered(input))

    def row(self, ids: torch.Tensor) -> torch.Tensor:
        """Look up rows of the matrix, for int64 [...]: [..., I]."""
        return self._scattered(self.numbers.look_up(ids))

    def dense(self, dtype: torch.dtype) -> torch.Tensor:
        """All numbers, in the dtype unless they are stored as floats."""
        return self._scattered(self.numbers.dense(dtype))

    def with_bias(self, bias_O: torch.Tensor | None) -> Matrix:
        """Of a matrix that is not packed."""
        return replace(self, bias_O=bias_O)

    def packed(self, target: Target) -> Matrix:
        """As the kernels there read it. Raises ConfigError where scales are not finite."""
        numbers = self.kind.packing(target.by_triton).of(self.numbers, self.bias_O, target.dtype, target.device)
        columns_S = None if self.columns_S is None else self.columns_S.to(target.device)
        return replace(self, numbers=numbers, columns_S=columns_S)

    def as_floats(self, dtype: torch.dtype) -> Matrix:
        """As floats of this dtype, unpacked when they are asked for."""
        return Matrix.of_floats(self.shape, lambda: self.dense(dtype), of_floats(str(dtype).removeprefix("torch.")))

    def in_panels(self) -> Matrix:
        """Floats in panels of our own, which a program multiplies whatever the number of rows."""
        return replace(self, numbers=FloatPanels.of(self.numbers, self.bias_O, self.dtype, self.device))

    def rounded(self, kind: Kind) -> Matrix:
        """Floats as another kind, to be rounded when they are packed."""
        if not kind.rounding:
            return replace(self, kind=kind)
        num_outputs, width = self.shape
        weight_OI, rounding = self.dense(self.dtype), kind.round()
        codes = StoredCodes(
            kind.name,
            (num_outputs, width),
            lambda start, stop: rounding(weight_OI[start:stop].float(), kind.bits, kind.group),
            kind.bits,
            kind.group,
            slice_rows=max(1, ROUNDED // width),
        )
        return replace(self, kind=kind, numbers=codes)

    @property
    def few_rows(self) -> int:
        """The most rows that a program's call multiplies."""
        return self.numbers.few_rows if self.columns_S is None else 0

    @property
    def form(self) -> Any:
        """Equal for matrices that one table of calls multiplies, or a kernel reads as a stack; None if none does."""
        return self.numbers.form if self.columns_S is None else None

    def ready(self, source: int, rooms: Rooms) -> list[Call]:
        return self.numbers.ready(source, rooms)

    def call(self, source: int, target: int, rooms: Rooms) -> Call:
        return self.numbers.call(source, target, rooms)

    def look_up_call(self, target: int) -> Call | None:
        return self.numbers.look_up_call(target) if self.columns_S is None else None

    def _gathered(self, input: torch.Tensor) -> torch.Tensor:
        """The inputs in the order of the stored columns."""
        if self.columns_S is None:
            return input
        has_fill = len(self.columns_S) > self.shape[1]
        return (functional.pad(input, (0, 1)) if has_fill else input)[..., self.columns_S]

    def _scattered(self, stored: torch.Tensor) -> torch.Tensor:
        """The stored columns in the order of the inputs, without those that are for none."""
        if self.columns_S is None:
            return stored
        return stored[..., torch.argsort(self.columns_S)[: self.shape[1]].to(stored.device)]


def arithmetic(dtype: torch.dtype) -> str:
    """What products of packed weights with rows of `dtype` compute with: two processors of one answer give the same
    bits, where oneDNN does not multiply."""
    halves = "tiles" if multiplies_in_tiles() else "pairs" if multiplies_halves() else "bfloat16 as float32"
    floats = halves if dtype == torch.bfloat16 else "float32"
    return f"{floats}, scales in units of spans"


def fits_panels(weight_OI: torch.Tensor) -> bool:
    """Whether a row of the input is a whole number of steps."""
    return weight_OI.shape[1] * weight_OI.itemsize % STEP_BYTES == 0
