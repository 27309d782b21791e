"""Numbers one by one, in memory or still in a file.

Torch multiplies them: on a GPU, and before they are packed. Knows no file.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn import functional

from decoding.kernels.cpu.program import Call
from decoding.kernels.cpu.rows import look_up
from decoding.weights.numbers.numbers import Numbers

# Shape suffixes: O outputs, I input width.


class Floats(Numbers):
    """read: all of them, of any number of dimensions."""

    def __init__(self, shape: tuple[int, ...], read: Callable[[], torch.Tensor], bias_O: torch.Tensor | None = None):
        self.shape, self.read, self._bias_O = shape, read, bias_O

    @classmethod
    def of_tensor(cls, weight_OI: torch.Tensor, bias_O: torch.Tensor | None = None) -> Floats:
        numbers = cls(tuple(weight_OI.shape), lambda: weight_OI, bias_O)
        numbers.dtype, numbers.device, numbers.num_bytes = weight_OI.dtype, weight_OI.device, weight_OI.nbytes
        return numbers

    def multiply(self, input: torch.Tensor) -> torch.Tensor:
        return functional.linear(input, self.read(), self._bias_O)

    def look_up(self, ids: torch.Tensor) -> torch.Tensor:
        return functional.embedding(ids, self.read())

    def dense(self, _dtype: torch.dtype) -> torch.Tensor:
        return self.read()

    def look_up_call(self, target: int) -> Call:
        table_OI = self.read()
        return Call(look_up, (table_OI.data_ptr(), target, 0, 0, table_OI.shape[1] * table_OI.itemsize, 0))
