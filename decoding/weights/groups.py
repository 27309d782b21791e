"""Weights as small integers in groups along the input, each group with a scale and a minimum.

Every kind that is no float becomes this record, and `quantized` makes it from full precision. Knows no layout.
Invariant: weight = scale * code - minimum.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.nn.functional import pad

from decoding.kernels.cpu.products.rounding import NUM_FIELDS, round_weights
from decoding.kernels.cpu.program import Kernel

# Shape suffixes: O outputs, I input width, G groups, N inputs of a group, S spans of `SPAN_WIDTH` inputs.
SPAN_WIDTH = 256  # GGUF's super-block
GROUP_WIDTHS = (16, 32)  # that kernels multiply; narrower groups are filled up to one of them
HAS_MINIMA = -1  # instead of a zero point
LARGEST_EXPONENT = 14  # of a row's scales and minima as float16, after its factor is taken out
# Codes [N, values], scales and minima [N, groups]; of super-blocks also the units of both, [N, 1].
Parts = tuple[torch.Tensor, ...]
CODE_BITS = (4, 5, 6, 8)
Fields = ctypes.c_int64 * NUM_FIELDS


@dataclass(frozen=True)
class Groups:
    """A matrix [O, I], or some of its rows.

    codes_OI: uint8, each below 2**bits. scales_OG, minima_OG: float32; types with a zero point have minimum = scale *
    zero point. bits: one of `CODE_BITS`; types of two or three bits arrive as four. group: the inputs of a group, one
    of `GROUP_WIDTHS`; wider groups arrive repeated. The last group may be cut short. scale_units_OS, minimum_units_OS:
    float32 that float16 holds, of which the scales and minima of a span are whole multiples, from -128 to 127; None
    where scales are of any size.
    """

    codes_OI: torch.Tensor
    scales_OG: torch.Tensor
    minima_OG: torch.Tensor
    bits: int
    group: int
    scale_units_OS: torch.Tensor | None = None
    minimum_units_OS: torch.Tensor | None = None

    def __post_init__(self) -> None:
        num_outputs, width = self.codes_OI.shape
        shape = (num_outputs, -(-width // self.group))
        assert self.bits in CODE_BITS, self.bits
        assert self.group in GROUP_WIDTHS, self.group
        assert self.codes_OI.dtype == torch.uint8, self.codes_OI.dtype
        assert self.scales_OG.shape == self.minima_OG.shape == shape, (self.scales_OG.shape, shape)
        assert self.scales_OG.dtype == self.minima_OG.dtype == torch.float32, self.scales_OG.dtype
        for units_OS in (self.scale_units_OS, self.minimum_units_OS):
            assert units_OS is None or units_OS.shape == (num_outputs, width // SPAN_WIDTH), (units_OS, shape)

    @property
    def has_units(self) -> bool:
        return self.scale_units_OS is not None

    def map(self, change: Callable[[str, torch.Tensor], torch.Tensor]) -> Groups:
        """With all tensors changed, which `change` is given by name."""
        tensors = {name: each for name, each in vars(self).items() if isinstance(each, torch.Tensor)}
        changed: dict[str, Any] = {name: change(name, each) for name, each in tensors.items()}
        return replace(self, **changed)


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
    Kernel(round_weights).run(ctypes.addressof(fields), torch.get_num_threads())
    return Groups(codes_OI, scales_OG, minima_OG, bits, group)


def symmetric(weight_OI: torch.Tensor, bits: int = 8, group: int = 32) -> Groups:
    """Round as GGUF files of Q8_0 have it: zero is a code, and a group's largest number, of 8 bits, 127 scales from it.
    weight_OI: finite."""
    zero = 2 ** (bits - 1)
    num_outputs, width = weight_OI.shape
    padded_OGN = pad(weight_OI.float(), (0, -width % group)).view(num_outputs, -1, group)
    scales_OG = padded_OGN.abs().amax(2) / (zero - 1)
    codes_OGN = torch.where(scales_OG[..., None] > 0, padded_OGN / scales_OG[..., None], 0).round() + zero
    codes_OI = codes_OGN.to(torch.uint8).flatten(1)[:, :width].contiguous()
    return Groups(codes_OI, scales_OG, scales_OG * zero, bits, group)


def joined(one: Groups, other: Groups) -> Groups:
    """The rows of one, then those of the other."""
    assert (one.bits, one.group) == (other.bits, other.group), (one.bits, one.group, other.bits, other.group)
    assert one.has_units == other.has_units, (one.has_units, other.has_units)
    return one.map(lambda name, tensor_O: torch.cat((tensor_O, getattr(other, name))))


def rows_of(groups: Groups, rows: slice) -> Groups:
    return groups.map(lambda _, tensor_O: tensor_O[rows])


def zero_point(scales_OG: torch.Tensor, minima_OG: torch.Tensor, bits: int) -> int:
    """The zero point of all groups; `HAS_MINIMA` if there is none."""
    place = int((scales_OG != 0).flatten().byte().argmax())  # that has a scale
    ratio = float(minima_OG.flatten()[place] / scales_OG.flatten()[place])
    zero = round(ratio) if 0 <= ratio < 2**bits else 0
    return zero if has_zero_point(scales_OG, minima_OG, zero) else HAS_MINIMA


def has_zero_point(scales_OG: torch.Tensor, minima_OG: torch.Tensor, zero: int) -> bool:
    return torch.equal(minima_OG, scales_OG * zero)


def wholes_of(numbers_OG: torch.Tensor, units_OS: torch.Tensor) -> torch.Tensor:
    """int8 [O, G]: how many units each scale or minimum is."""
    units_OG = units_OS.repeat_interleave(numbers_OG.shape[1] // units_OS.shape[1], 1)
    return torch.where(units_OG != 0, numbers_OG / units_OG, 0).round().to(torch.int8)


def factors_of(pairs: Iterable[torch.Tensor]) -> torch.Tensor:
    """[O]: powers of two that bring each row's largest number near the end of float16's range."""
    largest_O = torch.stack([each_OG.abs().amax(1) for each_OG in pairs]).amax(0)
    exponents_O = torch.frexp(largest_O).exponent - LARGEST_EXPONENT
    return torch.where(largest_O > 0, torch.ldexp(torch.ones_like(largest_O), exponents_O.clamp(-120, 120)), 1.0)


def groups_of(parts: Parts, num_rows: int, bits: int, group: int) -> Groups:
    """Of the parts of blocks that are `num_rows` rows, one after the other. Groups that no kernel multiplies are filled
    up, see `widened`."""
    codes, scales, minima, *units = parts
    wide = kernel_group(group)
    if wide != group:
        codes = pad(codes.reshape(-1, group), (0, wide - group))
    scales_OG, minima_OG = (each.reshape(num_rows, -1).contiguous() for each in (scales, minima))
    units_OS = (each.reshape(num_rows, -1).contiguous() for each in units)
    return Groups(codes.reshape(num_rows, -1), scales_OG, minima_OG, bits, wide, *units_OS)


def kernel_group(group: int) -> int:
    """The inputs of a group as kernels multiply it."""
    return next(wide for wide in GROUP_WIDTHS if wide >= group)


def kernel_width(width: int, group: int) -> int:
    """The stored columns of so many inputs, of groups that are whole."""
    return width // group * kernel_group(group) if kernel_group(group) != group else width


def widened(width: int, group: int, order_I: torch.Tensor | None) -> torch.Tensor | None:
    """The input that each stored column is for, `width` for one that fills a group up; None where they lie in order.

    group: 0 where groups are as wide as kernels have them. order_I: the input of which each column is in the file."""
    wide = kernel_group(group) if group else 0
    if wide == group:
        return order_I
    columns_I = torch.arange(width) if order_I is None else order_I
    return pad(columns_I.view(-1, group), (0, wide - group), value=width).flatten()
