"""SiLU in one compiled call that needs no padding, on the CPU.

Invariant: an element's result depends on the element alone, bit for bit.
"""

from __future__ import annotations

import ctypes
from functools import cache

import torch
import torch.nn.functional as F
from torch import nn
from transformers.activations import SiLUActivation

from decoding.kernels.cpu.program import Call, Kernel
from decoding.kernels.cpu.rows import NUM_FIELDS, gate_floats, gate_halves
from decoding.model.replacing.replacer import Replacements, Rule

ALONE_NUMBERS = 1 << 14  # for no more numbers, waking another thread costs more than it saves
DTYPES = (torch.float32, torch.bfloat16)
Fields = ctypes.c_int64 * NUM_FIELDS


class FusedSilu(nn.Module):
    """Replaces a SiLU module between layers of float32 or bfloat16."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype
        self._share = gate_halves if dtype == torch.bfloat16 else gate_floats
        self._kernel = Kernel(self._share)

    def __call__(self, values: torch.Tensor) -> torch.Tensor:  # skips nn.Module's hooks, which would double the cost
        values = values.contiguous()
        result, width = torch.empty_like(values), values.shape[-1]
        count = values.numel()
        fields = Fields(values.data_ptr(), result.data_ptr(), count // width, 0, width)
        self._kernel.run(ctypes.addressof(fields), torch.get_num_threads() if count > ALONE_NUMBERS else 1)
        return result

    def call(self, source: int, other: int, target: int, width: int) -> Call:
        """A program's call: target = silu(source) * other."""
        return Call(self._share, (source, target, 0, 0, width, other))


def silu_rule(dtype: torch.dtype) -> Rule:
    """Of modules between layers of this dtype."""
    return Rule(
        "SiLU modules fused",
        lambda place: type(place.module) in (nn.SiLU, SiLUActivation),
        lambda _place: [FusedSilu(dtype)],
    )


@cache
def _silu_of(dtype: torch.dtype) -> FusedSilu:
    return FusedSilu(dtype)


def _silu(input: torch.Tensor, inplace: bool = False) -> torch.Tensor | None:
    return None if inplace or input.dtype not in DTYPES else _silu_of(input.dtype)(input)


REPLACED: Replacements = {F.silu: _silu}
