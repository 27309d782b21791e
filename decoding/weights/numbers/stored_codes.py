"""Small integers in groups that are still in a file, or that floats are still to be rounded to.

Knows no file. Invariant: a few rows are unpacked at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from decoding.errors import ConfigError
from decoding.weights.groups import Groups, dequantized
from decoding.weights.numbers.numbers import Numbers

# Shape suffixes: O outputs, I input width.
SLICE = 2**21  # numbers that are unpacked at a time
SLICE_ROWS = 64  # slices are of so many rows, or of a multiple


class StoredCodes(Numbers):
    """read: the rows from one number to before another. name: what a sentence calls them. repeats: so many groups in a
    row have one scale. slice_rows: that are read at a time. scale_bytes: of a packed scale."""

    shape: tuple[int, int]

    def __init__(
        self,
        name: str,
        shape: tuple[int, int],
        read: Callable[[int, int], Groups],
        bits: int,
        group: int,
        repeats: int = 1,
        slice_rows: int = 0,
        scale_bytes: int = 2,
    ) -> None:
        self.name, self.shape, self.read = name, shape, read
        self.bits, self.group, self.repeats, self.scale_bytes = bits, group, repeats, scale_bytes
        self._slice_rows = slice_rows or max(SLICE_ROWS, SLICE // shape[1] // SLICE_ROWS * SLICE_ROWS)

    def slices(self) -> Iterator[Groups]:
        for start in range(0, self.shape[0], self._slice_rows):
            groups = self.read(start, min(start + self._slice_rows, self.shape[0]))
            if not bool(torch.isfinite(groups.scales_OG).all() and torch.isfinite(groups.minima_OG).all()):
                raise ConfigError(f"its weights are not all finite numbers: {self.name}")
            yield groups

    def dense(self, dtype: torch.dtype) -> torch.Tensor:
        weight_OI = torch.empty(self.shape, dtype=dtype)
        start = 0
        for groups in self.slices():
            weight_OI[start : start + len(groups.codes_OI)] = dequantized(groups)
            start += len(groups.codes_OI)
        return weight_OI
