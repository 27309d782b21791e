"""What a matrix's numbers can do wherever they are; here, what they do unless a kind of place says otherwise.

Knows no place. Invariant: a row's product depends on the row alone, bit for bit, but for torch's own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from decoding.kernels.cpu.program import Call, Rooms
from decoding.weights.groups import Groups

# Shape suffixes: M rows, O outputs, I input width.


class Numbers:
    """shape: [O, I]. dtype, device: of inputs and outputs. num_bytes: that they take.

    few_rows: the most rows that a program's call multiplies; row_steps: by the number of a call's field, how far a row
    moves it. form: equal for numbers that one table of calls multiplies; None if no table does. code_shape: equal for
    those that share oneDNN's code; None if that has no part in it.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    device = torch.device("cpu")
    num_bytes: int
    few_rows = 0
    row_steps: Mapping[int, int] = {}
    form: Any = None
    code_shape: Any = None

    def multiply(self, input: torch.Tensor) -> torch.Tensor:
        """[..., I] to [..., O], the bias added."""
        raise NotImplementedError

    def look_up(self, ids: torch.Tensor) -> torch.Tensor:
        """Rows of the matrix, for int64 [...]: [..., I]."""
        raise NotImplementedError

    def dense(self, _dtype: torch.dtype) -> torch.Tensor:
        """[O, I], in the dtype unless they are stored as floats."""
        return self.look_up(torch.arange(self.shape[0]))

    def slices(self) -> Iterator[Groups]:
        """All rows in order, as small integers. Raises ConfigError where scales are not finite."""
        raise NotImplementedError

    def stacked(self, _experts: Sequence[Sequence[Any]]) -> Any:
        """One matrix for each expert, of numbers like these, as a GPU's kernels read them; None if none does."""
        return None

    def ready(self, _source: int, _rooms: Rooms) -> list[Call]:
        """A program's calls that prepare an input; equal calls need be made once."""
        return []

    def call(self, source: int, target: int, rooms: Rooms) -> Call:
        """A program's call that multiplies what `ready` prepared, for up to `few_rows` rows."""
        raise NotImplementedError

    def look_up_call(self, _target: int) -> Call | None:
        """A program's call that looks up ids, whose address each step writes into the field `IDS`; None if none can."""
        return None


def padded_bias(bias_O: torch.Tensor | None, num_outputs: int) -> torch.Tensor | None:
    """float32, with zeros after it."""
    if bias_O is None:
        return None
    bias = torch.zeros(num_outputs)
    bias[: len(bias_O)] = bias_O
    return bias


def address_of(tensor: torch.Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()
