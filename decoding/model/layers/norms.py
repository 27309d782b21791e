"""Root-mean-square norms in one compiled call instead of six tensor operations, on the CPU.

A norm is replaced only if a trial on random rows shows which of the two known formulas it computes.
Invariant: every row is summed by the same instructions, so its result does not depend on other rows, bit for bit.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from decoding.errors import PartRefused
from decoding.kernels.cpu.program import Call, Kernel
from decoding.kernels.cpu.rows import NUM_FIELDS, normalise_floats, normalise_halves
from decoding.model.replacing.replacer import Calls, Place, Rule

# Shape suffixes: M rows, E width.
TRIAL_ROWS = 8
ALONE_NUMBERS = 1 << 15  # for no more numbers, waking another thread costs more than it saves
Fields = ctypes.c_int64 * NUM_FIELDS
TOLERANCES = {torch.float32: 1e-5, torch.bfloat16: 2e-2}
FORMULAS = ((0.0, True), (1.0, False))  # offset, rounds_first
OTHER_PARTS = "they have other parts, or numbers, than a weight"
OTHER_FORMULA = "they compute neither of the known formulas"


class FusedRmsNorm(nn.Module):
    """Replaces an RMSNorm module: x / rms(x) * (weight + offset). offset: 0, or 1 as in Gemma.

    rounds_first: the normalised row is rounded to the model's dtype before the weight is applied, as in Llama;
    otherwise only the product is rounded, as in Gemma.
    """

    def __init__(self, weight_E: torch.Tensor, eps: float, offset: float, rounds_first: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight_E, requires_grad=False)
        self._scale = weight_E.float().numpy() + np.float32(offset)
        self.width = weight_E.numel()
        self._constants = (self._scale.ctypes.data, int(np.float32(eps).view(np.uint32)), int(rounds_first))
        self._share = normalise_halves if weight_E.dtype == torch.bfloat16 else normalise_floats
        self._kernel = Kernel(self._share)

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:  # skips nn.Module's hooks, which would double the cost
        hidden = hidden.contiguous()
        result = torch.empty_like(hidden)
        num_rows, num_threads = hidden.numel() // self.width, torch.get_num_threads()
        fields = Fields(hidden.data_ptr(), result.data_ptr(), num_rows, 0, self.width, 0, 0, *self._constants)
        self._kernel.run(ctypes.addressof(fields), num_threads if hidden.numel() > ALONE_NUMBERS else 1)
        return result

    def call(self, source: int, target: int, rows: int = 1, step: int = 0) -> Call:
        """A program's call. rows: how many rows of the norm one token has, such as its heads. step: bytes between rows
        of the target; 0 if they are contiguous."""
        return Call(self._share, (source, target, 0, 0, self.width, 0, 0, *self._constants, step), rows)

    def call_after(self, source: int, other: int, total: int, target: int) -> Call:
        """A program's call: total = source + other; target = the norm of total."""
        return Call(self._share, (source, target, 0, 0, self.width, other, total, *self._constants))


def norm_rule(dtype: torch.dtype) -> Rule:
    """Of norms between layers of this dtype."""
    return Rule(
        "norms fused",
        lambda place: type(place.module).__name__.endswith("RMSNorm"),
        partial(_candidates, dtype),
        _check_formula,
    )


def _candidates(dtype: torch.dtype, place: Place) -> Iterator[FusedRmsNorm]:
    """By each of the known formulas."""
    norm: Any = place.module
    weight_E, eps = getattr(norm, "weight", None), getattr(norm, "variance_epsilon", getattr(norm, "eps", None))
    parameters = [name for name, _ in norm.named_parameters()]
    if parameters != ["weight"] or weight_E is None or weight_E.dtype != dtype or not isinstance(eps, float):
        raise PartRefused(OTHER_PARTS)
    for offset, rounds_first in FORMULAS:
        yield FusedRmsNorm(weight_E.detach(), eps, offset, rounds_first)


def _check_formula(fused: FusedRmsNorm, place: Place, _calls: Calls) -> None:
    dtype = fused.weight.dtype
    trial_ME = torch.randn(TRIAL_ROWS, fused.width, generator=torch.Generator().manual_seed(0)).to(dtype)
    with torch.inference_mode():
        found_ME, expected_ME = fused(trial_ME), place.module(trial_ME)
    if not torch.allclose(found_ME, expected_ME, rtol=TOLERANCES[dtype], atol=TOLERANCES[dtype]):
        raise PartRefused(OTHER_FORMULA)
