"""Short convolutions of a step's rows, each over its own and its nearest ancestors' inputs, and their windows.

Plain torch, and for float32 on the CPU a compiled kernel with the same bits: a row's sum runs from the oldest input on,
and no product is joined with a sum.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from decoding.kernels.cpu.states.convolution import convolve_floats

# Shape suffixes: M rows, C channels, W inputs that a convolution looks back at, B segments.
Places = NDArray[np.int64]


def convolve(
    inputs_MC: torch.Tensor, windows_BWC: torch.Tensor, places: Places, weight: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor:
    """[M, C] in the weight's dtype. places: as of `StepWalk.inputs`. weight: [C, W + 1], the oldest input's first."""
    if _is_compiled(inputs_MC, windows_BWC, weight):
        out_MC = torch.empty_like(inputs_MC, memory_format=torch.contiguous_format)
        bias_C = np.empty(0, np.float32) if bias is None else bias.detach().numpy()
        numbers = inputs_MC.contiguous().numpy(), windows_BWC.contiguous().numpy(), weight.detach().numpy()
        convolve_floats(*numbers[:2], places, numbers[2], bias_C, out_MC.numpy())
        return out_MC
    return convolve_in_torch(inputs_MC, windows_BWC, places, weight, bias)


def convolve_in_torch(
    inputs_MC: torch.Tensor, windows_BWC: torch.Tensor, places: Places, weight: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor:
    """The same, operation by operation, on any device and in any dtype."""
    width = weight.shape[1] - 1
    all_inputs = torch.cat([windows_BWC.flatten(0, 1), inputs_MC]).to(torch.promote_types(weight.dtype, torch.float32))
    rows = torch.from_numpy(places).to(inputs_MC.device)
    taps = weight.T.to(all_inputs.dtype)
    out_MC = all_inputs[rows[:, width]] * taps[0]
    for tap in range(1, width + 1):
        out_MC = out_MC + all_inputs[rows[:, width - tap]] * taps[tap]
    return (out_MC if bias is None else out_MC + bias).to(weight.dtype)


def _is_compiled(*tensors: torch.Tensor) -> bool:
    return all(each.device.type == "cpu" and each.dtype == torch.float32 for each in tensors)


def slide(target_WC: torch.Tensor, before_WC: torch.Tensor, inputs: torch.Tensor) -> None:
    """Write the window after some more inputs: the last ones there are."""
    width = len(target_WC)
    if len(inputs) >= width:
        target_WC.copy_(inputs[len(inputs) - width :])
    else:
        target_WC.copy_(torch.cat([before_WC[len(inputs) :], inputs]))
