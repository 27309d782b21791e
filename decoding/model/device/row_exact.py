"""Makes what a model computes row-exact on a GPU: linear layers, means and norms, by kernels of our own.

Modelling code calls torch's functions, whose rounding of a row depends on the number of rows. `REPLACED` is for those
calls (see `ReplacedFunctions`): linear maps, and means and norms over the last dimension. What else a dense model calls
is computed number by number.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
import triton

from decoding.kernels.gpu.products import mean
from decoding.kernels.gpu.toolchain import NO_FUSION
from decoding.model.replacing.replacer import Replacements
from decoding.weights.device_products import linear


def mean_of(input: torch.Tensor) -> torch.Tensor:
    """The means of the last dimension, which is kept, in the input's dtype."""
    rows, width = input.contiguous(), input.shape[-1]
    means = rows.new_empty(*input.shape[:-1], 1)
    with torch.cuda.device(input.get_device()):
        mean[(means.numel(),)](rows, means, WIDTH=width, N=triton.next_power_of_2(width), **NO_FUSION)
    return means


def _mean(input: torch.Tensor, dim: Any = None, keepdim: bool = False, **options: Any) -> torch.Tensor | None:
    if dim not in (-1, input.dim() - 1, (-1,), [-1]) or options or not input.is_floating_point():
        return None
    means = mean_of(input)
    return means if keepdim else means[..., 0]


def _layer_norm(
    input: torch.Tensor,
    shape: Any,
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    eps: float = 1e-5,
) -> torch.Tensor | None:
    if len(shape) != 1:
        return None
    centred = input.float() - mean_of(input.float())
    normed = centred * torch.rsqrt(mean_of(centred * centred) + eps)
    normed = normed if weight is None else normed * weight.float()
    return (normed if bias is None else normed + bias.float()).to(input.dtype)


def _rms_norm(
    input: torch.Tensor, shape: Any, weight: torch.Tensor | None = None, eps: float | None = None
) -> torch.Tensor | None:
    if len(shape) != 1:
        return None
    numbers = input.float()
    normed = numbers * torch.rsqrt(mean_of(numbers * numbers) + (torch.finfo(input.dtype).eps if eps is None else eps))
    return (normed if weight is None else normed * weight.float()).to(input.dtype)


def _addmm(input: torch.Tensor, rows: torch.Tensor, columns: torch.Tensor, **options: Any) -> torch.Tensor | None:
    return None if options or input.dim() != 1 else linear(rows, columns.t(), input)


REPLACED: Replacements = {
    F.linear: linear,
    torch.addmm: _addmm,
    torch.mean: _mean,
    torch.Tensor.mean: _mean,
    F.layer_norm: _layer_norm,
    F.rms_norm: _rms_norm,
}
