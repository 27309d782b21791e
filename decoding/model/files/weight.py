"""One weight of a checkpoint, packed or dense, before it is read; and linear layers made of it.

Knows no file format. Invariant: a packed weight is unpacked a slice of rows at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import nn

from decoding.errors import ConfigError
from decoding.model.device.packed_linear import PackedDeviceLinear
from decoding.model.device.packed_matrix import packed_bytes, packed_matrix
from decoding.model.linear.grouped import GroupedLinear
from decoding.model.linear.groups import Groups, dequantized

# Shape suffixes: M rows, O outputs, I input width.
SLICE = 2**19  # numbers that are unpacked at a time
SLICE_ROWS = 64  # slices are of so many rows, or of a multiple
PAIR_BYTES = 4  # of a group's scale and minimum


@dataclass(frozen=True, slots=True)
class DenseWeight:
    """Numbers that are stored one by one. read: all of them."""

    name: str
    shape: tuple[int, ...]
    read: Callable[[], torch.Tensor]

    def num_bytes(self, dtype: torch.dtype) -> int:
        return torch.Size(self.shape).numel() * dtype.itemsize


@dataclass(frozen=True, slots=True)
class PackedWeight:
    """A matrix of small integers in groups. read: the rows from one number to before another. order_I: the input of
    which each column is, where columns were sorted into groups. repeats: so many groups in a row have one scale."""

    name: str
    shape: tuple[int, int]
    bits: int
    group: int
    read: Callable[[int, int], Groups]
    order_I: torch.Tensor | None = None
    repeats: int = 1

    def num_bytes(self, _dtype: torch.dtype) -> int:
        num_outputs, width = self.shape
        return num_outputs * (width * self.bits // 8 + -(-width // self.group) * PAIR_BYTES)

    def num_device_bytes(self) -> int:
        return packed_bytes(self.shape, self.bits, self.group * self.repeats)

    def slices(self) -> Iterator[Groups]:
        """All rows in order. Raises ConfigError where scales are not finite."""
        num_rows = max(SLICE_ROWS, SLICE // self.shape[1] // SLICE_ROWS * SLICE_ROWS)
        for start in range(0, self.shape[0], num_rows):
            groups = self.read(start, min(start + num_rows, self.shape[0]))
            if not bool(torch.isfinite(groups.scales_OG).all() and torch.isfinite(groups.minima_OG).all()):
                raise ConfigError(f"its weights are not all finite numbers: {self.name}")
            yield groups

    def dense(self, dtype: torch.dtype) -> torch.Tensor:
        """[O, I]"""
        weight_OI = torch.empty(self.shape, dtype=dtype)
        start = 0
        for groups in self.slices():
            weight_OI[start : start + len(groups.codes_OI)] = dequantized(groups)
            start += len(groups.codes_OI)
        if self.order_I is None:
            return weight_OI
        return torch.empty_like(weight_OI).index_copy_(1, self.order_I, weight_OI)


Weight = DenseWeight | PackedWeight


class GatheredLinear(nn.Module):
    """A layer whose matrix has its columns in another order than the input."""

    def __init__(self, linear: GroupedLinear | PackedDeviceLinear, order_I: torch.Tensor) -> None:
        super().__init__()
        self.linear, self.order_I = linear, order_I
        self.out_features, self.in_features = linear.shape
        self.weight = linear.weight  # modelling code reads its dtype and device

    def __call__(self, input: torch.Tensor) -> torch.Tensor:
        return self.linear(input[..., self.order_I])


@dataclass(frozen=True, slots=True)
class Target:
    """Where weights go. is_packed: small integers stay packed. by_triton: so that Triton's kernels multiply them."""

    dtype: torch.dtype
    device: torch.device
    is_packed: bool
    by_triton: bool = False

    def dense(self, weight: Weight) -> torch.Tensor:
        numbers = weight.dense(self.dtype) if isinstance(weight, PackedWeight) else weight.read()
        return numbers.to(self.device, self.dtype)

    def linear(self, weight: Weight, bias: Weight | None) -> nn.Module:
        """A layer of this matrix."""
        bias_O = None if bias is None else self.dense(bias)
        if isinstance(weight, PackedWeight) and self.is_packed:
            packed = self._packed(weight, bias_O)
            return packed if weight.order_I is None else GatheredLinear(packed, weight.order_I.to(self.device))
        with torch.device("meta"):
            linear = nn.Linear(weight.shape[1], weight.shape[0], bias_O is not None)
        linear.weight = nn.Parameter(self.dense(weight), requires_grad=False)
        if bias_O is not None:
            linear.bias = nn.Parameter(bias_O, requires_grad=False)
        return linear

    def _packed(self, weight: PackedWeight, bias_O: torch.Tensor | None) -> GroupedLinear | PackedDeviceLinear:
        if not self.by_triton:
            return GroupedLinear(weight.slices(), weight.shape, bias_O, self.dtype)
        matrix = packed_matrix(weight.slices(), weight.shape, weight.repeats, self.device)
        return PackedDeviceLinear(matrix, bias_O, self.dtype)
