"""Root-mean-square norms in one compiled call instead of six tensor operations, on the CPU.

A norm is replaced only where a trial on random rows shows which of the two known formulas it computes.
Invariant: every row is summed by the same instructions, so a row's bits do not depend on the others.
"""

from __future__ import annotations

from typing import Any

import numba as nb
import numpy as np
import torch
from torch import nn

from decoding.attention.lanes import pointer

# Shape suffixes: M rows, E width.
TRIAL_ROWS = 8
FAST = {"reassoc", "contract", "nsz"}
TOLERANCES = {torch.float32: 1e-5, torch.bfloat16: 2e-2}


class FusedRmsNorm(nn.Module):
    """Stands for an RMSNorm module: x / rms(x) * weight, with the weight's offset for Gemma's kind.

    rounds_first: the normalised row is rounded to the model's dtype before the weight is applied (Llama's
    kind); otherwise only the product is (Gemma's).
    """

    def __init__(self, weight_E: torch.Tensor, eps: float, offset: float, rounds_first: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight_E, requires_grad=False)
        self._scale = weight_E.float().numpy() + np.float32(offset)
        self._width = weight_E.numel()
        self._eps = eps
        self._is_half = weight_E.dtype == torch.bfloat16
        self._rounds_first = rounds_first

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:  # past nn.Module's hooks, which cost as much again
        hidden = hidden.contiguous()
        result = torch.empty_like(hidden)
        num_rows = hidden.numel() // self._width
        run = _normalise_half if self._is_half else _normalise
        run(hidden.data_ptr(), result.data_ptr(), num_rows, self._scale, self._eps, self._rounds_first)
        return result


def fuse_norms(model: nn.Module, dtype: torch.dtype) -> None:
    """Replace every norm of `model` that computes a formula known here."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child).__name__.endswith("RMSNorm"):
                fused = _fused(child, dtype)
                if fused is not None:
                    setattr(parent, name, fused)


def _fused(norm: nn.Module, dtype: torch.dtype) -> FusedRmsNorm | None:
    weight_E = getattr(norm, "weight", None)
    eps = getattr(norm, "variance_epsilon", getattr(norm, "eps", None))
    parameters = [name for name, _ in norm.named_parameters()]
    if parameters != ["weight"] or weight_E is None or weight_E.dtype != dtype or not isinstance(eps, float):
        return None
    trial_ME = torch.randn(TRIAL_ROWS, weight_E.numel(), generator=torch.Generator().manual_seed(0)).to(dtype)
    with torch.inference_mode():
        expected_ME = norm(trial_ME)
        for offset, rounds_first in ((0.0, True), (1.0, False)):
            fused = FusedRmsNorm(weight_E.detach(), eps, offset, rounds_first)
            if torch.allclose(fused(trial_ME), expected_ME, rtol=TOLERANCES[dtype], atol=TOLERANCES[dtype]):
                return fused
    return None


@nb.njit(cache=True, fastmath=FAST)
def _normalise(source: int, target: int, num_rows: int, scale: Any, eps: float, _rounds_first: bool) -> None:
    width = len(scale)
    rows = nb.carray(pointer(source, np.float32(0)), (num_rows, width))
    out = nb.carray(pointer(target, np.float32(0)), (num_rows, width))
    for row in range(num_rows):
        total = np.float32(0)
        for column in range(width):
            total += rows[row, column] * rows[row, column]
        share = np.float32(1) / np.sqrt(total / np.float32(width) + np.float32(eps))
        for column in range(width):
            out[row, column] = rows[row, column] * share * scale[column]


@nb.njit(cache=True, fastmath=FAST)
def _normalise_half(source: int, target: int, num_rows: int, scale: Any, eps: float, rounds_first: bool) -> None:
    """bfloat16 numbers as the upper halves of float32 ones."""
    width = len(scale)
    rows = nb.carray(pointer(source, np.uint16(0)), (num_rows, width))
    out = nb.carray(pointer(target, np.uint16(0)), (num_rows, width))
    wide = np.empty(width, np.float32)
    bits = wide.view(np.uint32)
    for row in range(num_rows):
        for column in range(width):
            bits[column] = np.uint32(rows[row, column]) << np.uint32(16)
        total = np.float32(0)
        for column in range(width):
            total += wide[column] * wide[column]
        share = np.float32(1) / np.sqrt(total / np.float32(width) + np.float32(eps))
        for column in range(width):
            wide[column] *= share
        if rounds_first:
            for column in range(width):
                bits[column] = _rounded(bits[column]) & np.uint32(0xFFFF0000)
        for column in range(width):
            wide[column] *= scale[column]
        for column in range(width):
            out[row, column] = _rounded(bits[column]) >> np.uint32(16)


@nb.njit(cache=True, inline="always")
def _rounded(bits: Any) -> Any:
    """To the nearest bfloat16, ties to even; the low half is then noise."""
    return bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
