"""A matrix of small integers in groups as it lies on a GPU; the twin of `PackedGroups`.

Knows no file formats. Invariant: what is multiplied is what `dequantized` makes of the groups, up to the rounding of
scales and minima to float16 times a power of two for each output.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch.nn import functional

from decoding.kernels.layout import HALF_TILE
from decoding.model.linear.grouped import HAS_MINIMA, factors_of, zero_point
from decoding.model.linear.groups import Groups

# Shape suffixes: M rows, O outputs, I input width, G groups, N bytes.
TILE = 2 * HALF_TILE  # inputs that the kernel multiplies at a time
PAIR_BYTES, FACTOR_BYTES = 4, 4  # of a group's scale and minimum; of an output's factor


@dataclass(frozen=True, slots=True, eq=False)
class PackedMatrix:
    """A matrix [O, I]. bits: of a code, 4 or 8. group: inputs of a scale. zero: the zero point of all groups, or
    HAS_MINIMA.

    codes_ON: uint8. Codes of 4 bits lie so that of 64 inputs byte j has those of inputs j and j + 32. scales_OG,
    minima_OG: float16, the same tensor where there are no minima. factors_O: float32.
    """

    shape: tuple[int, int]
    bits: int
    group: int
    zero: int
    codes_ON: torch.Tensor
    scales_OG: torch.Tensor
    minima_OG: torch.Tensor
    factors_O: torch.Tensor

    @property
    def num_bytes(self) -> int:
        pairs = {id(each): each for each in (self.scales_OG, self.minima_OG)}.values()
        return self.codes_ON.nbytes + self.factors_O.nbytes + sum(each.nbytes for each in pairs)


def packed_matrix(slices: Iterable[Groups], shape: tuple[int, int], repeats: int, device: torch.device) -> PackedMatrix:
    """slices: of its rows, all of the same bits and group. repeats: so many groups in a row have the same scale and
    minimum, of which one is kept."""
    codes, scales, minima, bits, group = [], [], [], 0, 0
    for groups in slices:
        bits, group = code_bits(groups.bits), groups.group * repeats
        codes.append(_bytes_of(groups.codes_OI, bits).to(device))
        scales.append(groups.scales_OG[:, ::repeats])
        minima.append(groups.minima_OG[:, ::repeats])
    scales_OG, minima_OG = torch.cat(scales), torch.cat(minima)
    zero = zero_point(scales_OG, minima_OG, bits)
    pairs = (scales_OG,) if zero != HAS_MINIMA else (scales_OG, minima_OG)
    factors_O = factors_of(pairs)
    halves = [(each_OG / factors_O[:, None]).half().to(device) for each_OG in pairs]
    return PackedMatrix(shape, bits, group, zero, torch.cat(codes), halves[0], halves[-1], factors_O.to(device))


def code_bits(bits: int) -> int:
    """What a code takes here."""
    return 4 if bits == 4 else 8


def packed_bytes(shape: tuple[int, int], bits: int, group: int) -> int:
    """What a matrix takes, if its groups have minima. group: inputs of a scale."""
    num_outputs, width = shape
    row_bytes = -(-width // TILE) * TILE * code_bits(bits) // 8
    return num_outputs * (row_bytes + -(-width // group) * PAIR_BYTES + FACTOR_BYTES)


def _bytes_of(codes_OI: torch.Tensor, bits: int) -> torch.Tensor:
    """[O, N]"""
    padded_ON = functional.pad(codes_OI, (0, -codes_OI.shape[1] % TILE))
    if bits != 4:
        return padded_ON.contiguous()
    low, high = padded_ON.view(len(padded_ON), -1, 2, HALF_TILE).unbind(2)
    return (low | high << 4).flatten(1)
