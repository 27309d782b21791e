"""Small integers in groups as they lie on a GPU; the twin of `GroupedCodes`.

Knows no kinds. Invariant: what is multiplied is what `dequantized` makes of the groups, up to the rounding of
scales and minima to float16 times a power of two for each output.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch.nn import functional

from decoding.kernels.layout import HALF_TILE
from decoding.weights.groups import HAS_MINIMA, factors_of, zero_point
from decoding.weights.numbers.numbers import Numbers
from decoding.weights.numbers.stored_codes import StoredCodes

# Shape suffixes: M rows, O outputs, I input width, G groups, N bytes.
TILE = 2 * HALF_TILE  # inputs that the kernel multiplies at a time
PAIR_BYTES, FACTOR_BYTES = 4, 4  # of a group's scale and minimum; of an output's factor


class CodeTensors(NamedTuple):
    codes_ON: torch.Tensor
    scales_OG: torch.Tensor
    minima_OG: torch.Tensor
    factors_O: torch.Tensor


class CodeStack(NamedTuple):
    """One matrix [O, I] for each expert. tensors: with one more dimension in front. packing: as by `packing_of`."""

    tensors: CodeTensors
    bias_XO: torch.Tensor | None
    shape: tuple[int, int]
    packing: dict[str, int]


class DeviceCodes(Numbers):
    """bits: of a code, 4 or 8. group: inputs of a scale. zero: the zero point of all groups, or HAS_MINIMA.

    codes_ON: uint8. Codes of 4 bits lie so that of 64 inputs byte j has those of inputs j and j + 32. scales_OG,
    minima_OG: float16, the same tensor where there are no minima. factors_O: float32.
    """

    shape: tuple[int, int]

    def __init__(
        self,
        shape: tuple[int, int],
        bits: int,
        group: int,
        zero: int,
        tensors: CodeTensors,
        bias_O: torch.Tensor | None,
        dtype: torch.dtype,
    ) -> None:
        from decoding.weights.device_products import multiply_codes, packing_of  # Triton may not be installed elsewhere

        self.shape, self.bits, self.group, self.zero = shape, bits, group, zero
        self.tensors, self.bias_O, self.dtype = tensors, bias_O, dtype
        self.device = tensors.codes_ON.device
        self.num_bytes = sum(each.nbytes for each in {id(each): each for each in tensors}.values())
        self.form = DeviceCodes, bits, group, zero, shape[1]
        self._multiply, self._packing = multiply_codes, packing_of(bits, group, zero)

    @classmethod
    def of(
        cls, stored: StoredCodes, bias_O: torch.Tensor | None, dtype: torch.dtype, device: torch.device
    ) -> DeviceCodes:
        """Of groups in a row that have the same scale and minimum, one is kept."""
        codes, scales, minima = [], [], []
        bits, repeats = code_bits(stored.bits), stored.repeats
        for groups in stored.slices():
            codes.append(_bytes_of(groups.codes_OI, bits).to(device))
            scales.append(groups.scales_OG[:, ::repeats])
            minima.append(groups.minima_OG[:, ::repeats])
        scales_OG, minima_OG = torch.cat(scales), torch.cat(minima)
        zero = zero_point(scales_OG, minima_OG, bits)
        pairs = (scales_OG,) if zero != HAS_MINIMA else (scales_OG, minima_OG)
        factors_O = factors_of(pairs)
        halves = [(each_OG / factors_O[:, None]).half().to(device) for each_OG in pairs]
        tensors = CodeTensors(torch.cat(codes), halves[0], halves[-1], factors_O.to(device))
        return cls(stored.shape, bits, stored.group * repeats, zero, tensors, bias_O, dtype)

    @staticmethod
    def bytes_of(stored: StoredCodes) -> int:
        """That they would take, if groups have minima."""
        num_outputs, width = stored.shape
        row_bytes = -(-width // TILE) * TILE * code_bits(stored.bits) // 8
        pairs = -(-width // (stored.group * stored.repeats))
        return num_outputs * (row_bytes + pairs * PAIR_BYTES + FACTOR_BYTES)

    def multiply(self, input: torch.Tensor) -> torch.Tensor:
        return self._multiply(input, self.tensors, self.bias_O, self.shape, self._packing)

    def stacked(self, experts: Sequence[Sequence[DeviceCodes]]) -> CodeStack:
        """experts: of each the parts of its matrix, whose outputs follow one another; all of the same form."""

        def joined(place: int) -> torch.Tensor:
            return torch.stack([torch.cat([each.tensors[place] for each in own]) for own in experts])

        codes, scales, factors = joined(0), joined(1), joined(3)
        tensors = CodeTensors(codes, scales, joined(2) if self.zero == HAS_MINIMA else scales, factors)
        biases = [[each.bias_O for each in own if each.bias_O is not None] for own in experts]
        bias_XO = torch.stack([torch.cat(own) for own in biases]) if biases[0] else None
        return CodeStack(tensors, bias_XO, (codes.shape[1], self.shape[1]), self._packing)


def code_bits(bits: int) -> int:
    """What a code takes here."""
    return 4 if bits == 4 else 8


def _bytes_of(codes_OI: torch.Tensor, bits: int) -> torch.Tensor:
    """[O, N]"""
    padded_ON = functional.pad(codes_OI, (0, -codes_OI.shape[1] % TILE))
    if bits != 4:
        return padded_ON.contiguous()
    low, high = padded_ON.view(len(padded_ON), -1, 2, HALF_TILE).unbind(2)
    return (low | high << 4).flatten(1)
