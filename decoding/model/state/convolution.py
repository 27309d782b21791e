"""Short convolutions of a step's rows, each over its own and its nearest ancestors' inputs, and their windows.

Plain torch, and for float32 on the CPU a compiled kernel with the same bits: a row's sum runs from the oldest input on,
and no product is joined with a sum.
"""

from __future__ import annotations

import numba as nb
import numpy as np
import torch
from numpy.typing import NDArray

# Shape suffixes: M rows, C channels, W inputs that a convolution looks back at, B segments.
Floats = NDArray[np.float32]
Places = NDArray[np.int64]


def convolve(
    inputs_MC: torch.Tensor, windows_BWC: torch.Tensor, places: Places, weight: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor:
    """[M, C] in the weight's dtype. places: as of `StepWalk.inputs`. weight: [C, W + 1], the oldest input's first."""
    if _is_compiled(inputs_MC, windows_BWC, weight):
        out_MC = torch.empty_like(inputs_MC, memory_format=torch.contiguous_format)
        bias_C = np.empty(0, np.float32) if bias is None else bias.detach().numpy()
        numbers = inputs_MC.contiguous().numpy(), windows_BWC.contiguous().numpy(), weight.detach().numpy()
        _convolve(*numbers[:2], places, numbers[2], bias_C, out_MC.numpy())
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


@nb.njit(cache=True)
def _convolve(
    inputs_MC: Floats, windows_BWC: Floats, places: Places, weight: Floats, bias_C: Floats, out_MC: Floats
) -> None:
    width = weight.shape[1] - 1
    num_before = len(windows_BWC) * width
    taps = np.empty((width + 1, len(weight)), np.float32)
    for channel in range(len(weight)):
        for tap in range(width + 1):
            taps[tap, channel] = weight[channel, tap]
    for row in range(len(out_MC)):
        out_C = out_MC[row]
        for tap in range(width + 1):
            place = places[row, width - tap]
            if place < num_before:
                source_C = windows_BWC[place // width, place % width]
            else:
                source_C = inputs_MC[place - num_before]
            taps_C = taps[tap]
            if tap == 0:
                for channel in range(len(out_C)):
                    out_C[channel] = source_C[channel] * taps_C[channel]
            else:
                for channel in range(len(out_C)):
                    out_C[channel] += source_C[channel] * taps_C[channel]
        if len(bias_C):
            for channel in range(len(out_C)):
                out_C[channel] += bias_C[channel]
