"""Weights as small integers in groups along the input, each group with a scale and a minimum.

Every quantised format of files becomes this record, and `quantized` makes it from full precision. Knows no layout.
Invariant: weight = scale * code - minimum.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import torch
from torch.nn.functional import pad

from decoding.kernels.cpu.products.rounding import NUM_FIELDS, round_weights
from decoding.kernels.cpu.program import Team

# Shape suffixes: O outputs, I input width, G groups, N inputs of a group.
GROUP_WIDTHS = (16, 32)
CODE_BITS = (4, 5, 6, 8)
LARGEST, ZERO = 127, 128  # of symmetric codes of 8 bits
Fields = ctypes.c_int64 * NUM_FIELDS


@dataclass(frozen=True)
class Groups:
    """A matrix [O, I], or some of its rows.

    codes_OI: uint8, each below 2**bits. scales_OG, minima_OG: float32; types with a zero point have minimum = scale *
    zero point. bits: one of `CODE_BITS`; types of two or three bits arrive as four. group: the inputs of a group, one
    of `GROUP_WIDTHS`; wider groups arrive repeated. The last group may be cut short.
    """

    codes_OI: torch.Tensor
    scales_OG: torch.Tensor
    minima_OG: torch.Tensor
    bits: int
    group: int

    def __post_init__(self) -> None:
        num_outputs, width = self.codes_OI.shape
        shape = (num_outputs, -(-width // self.group))
        assert self.bits in CODE_BITS, self.bits
        assert self.group in GROUP_WIDTHS, self.group
        assert self.codes_OI.dtype == torch.uint8, self.codes_OI.dtype
        assert self.scales_OG.shape == self.minima_OG.shape == shape, (self.scales_OG.shape, shape)
        assert self.scales_OG.dtype == self.minima_OG.dtype == torch.float32, self.scales_OG.dtype


def dequantized(groups: Groups) -> torch.Tensor:
    """float32 [O, I]"""
    width = groups.codes_OI.shape[1]
    scales_OI, minima_OI = (
        each_OG.repeat_interleave(groups.group, 1)[:, :width] for each_OG in (groups.scales_OG, groups.minima_OG)
    )
    return scales_OI * groups.codes_OI - minima_OI


def quantized(weight_OI: torch.Tensor, bits: int, group: int = 32) -> Groups:
    """Round to the codes, scale and minimum of each group with the least squared error, large weights counting more.

    weight_OI: finite. Several ranges give codes, and least squares fit scale and minimum to these (as k-quants do)."""
    weight_OI = weight_OI.float().contiguous()
    num_outputs, width = weight_OI.shape
    codes_OI = torch.empty(num_outputs, width, dtype=torch.uint8)
    scales_OG, minima_OG = torch.empty(2, num_outputs, -(-width // group)).unbind()
    places = (weight_OI.data_ptr(), codes_OI.data_ptr(), num_outputs, 0, width, group, 2**bits - 1)
    fields = Fields(*places, scales_OG.data_ptr(), minima_OG.data_ptr())
    Team(round_weights).run(ctypes.addressof(fields), torch.get_num_threads())
    return Groups(codes_OI, scales_OG, minima_OG, bits, group)


def symmetric(weight_OI: torch.Tensor, group: int = 32) -> Groups:
    """Round to 8 bits as GGUF files of Q8_0 have them: zero is a code, and a group's largest number 127 scales from it.
    weight_OI: finite."""
    num_outputs, width = weight_OI.shape
    padded_OGN = pad(weight_OI.float(), (0, -width % group)).view(num_outputs, -1, group)
    scales_OG = padded_OGN.abs().amax(2) / LARGEST
    codes_OGN = torch.where(scales_OG[..., None] > 0, padded_OGN / scales_OG[..., None], 0).round() + ZERO
    codes_OI = codes_OGN.to(torch.uint8).flatten(1)[:, :width].contiguous()
    return Groups(codes_OI, scales_OG, scales_OG * ZERO, 8, group)
