"""Weights as small integers in groups along the input, each group with a scale and a minimum.

Every quantised format of files becomes this record, and `quantized` makes it from full precision. Knows no layout.
Invariant: weight = scale * code - minimum.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

# Shape suffixes: O outputs, I input width, G groups, K inputs of a group.
GROUP_WIDTHS = (16, 32)
CODE_BITS = (4, 5, 6, 8)
SHRINKS = tuple(1 - step / 32 for step in range(-1, 13))  # the ranges that are tried, as parts of a group's own range
REFITS = 2  # least-squares fits of scale and minimum to the codes


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

    Each range of `SHRINKS` gives codes, and least squares fit scale and minimum to these (as k-quants do)."""
    num_outputs, width = weight_OI.shape
    num_groups = -(-width // group)
    weight_OGK = torch.zeros(num_outputs, num_groups * group)
    weight_OGK[:, :width] = weight_OI
    weight_OGK = weight_OGK.view(num_outputs, num_groups, group)
    importance_OGK = weight_OGK.abs() + weight_OGK.square().mean(-1, keepdim=True).sqrt()
    low_OG1, high_OG1 = weight_OGK.amin(-1, keepdim=True), weight_OGK.amax(-1, keepdim=True)
    most = float(2**bits - 1)
    least_OG1 = torch.full_like(low_OG1, torch.inf)
    best_codes, best_scale, best_minimum = torch.zeros_like(weight_OGK), torch.zeros_like(low_OG1), -low_OG1
    for shrink in SHRINKS:
        middle, half = (high_OG1 + low_OG1) / 2, (high_OG1 - low_OG1) / 2 * shrink
        scale, minimum = 2 * half / most, half - middle
        for _ in range(REFITS + 1):
            codes = _codes(weight_OGK, scale, minimum, most)
            error = (importance_OGK * (scale * codes - minimum - weight_OGK).square()).sum(-1, keepdim=True)
            is_better = error < least_OG1
            least_OG1 = torch.where(is_better, error, least_OG1)
            best_codes = torch.where(is_better, codes, best_codes)
            best_scale, best_minimum = (
                torch.where(is_better, new, best) for new, best in ((scale, best_scale), (minimum, best_minimum))
            )
            scale, minimum = _fitted(weight_OGK, importance_OGK, codes)
    codes_OI = best_codes.view(num_outputs, -1)[:, :width].to(torch.uint8)
    return Groups(codes_OI, best_scale[..., 0].contiguous(), best_minimum[..., 0].contiguous(), bits, group)


def _codes(weight: torch.Tensor, scale: torch.Tensor, minimum: torch.Tensor, most: float) -> torch.Tensor:
    return torch.where(scale != 0, (weight + minimum) / scale, 0).round().clamp(0, most)


def _fitted(weight: torch.Tensor, importance: torch.Tensor, codes: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Scale and minimum of the least weighted squared error with these codes."""
    total = importance.sum(-1, keepdim=True).clamp_min(1e-30)
    mean_weight, mean_code = ((importance * each).sum(-1, keepdim=True) / total for each in (weight, codes))
    spread = (importance * (codes - mean_code).square()).sum(-1, keepdim=True)
    together = (importance * (codes - mean_code) * (weight - mean_weight)).sum(-1, keepdim=True)
    scale = torch.where(spread > 0, together / spread, 0)
    return scale, scale * mean_code - mean_weight
