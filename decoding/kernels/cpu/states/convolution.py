"""Short convolutions of rows, each over its own and its nearest ancestors' inputs: channel by channel.

Invariant: a row's sum runs from the oldest input on, and no product is joined with a sum.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from decoding.kernels.numba_kernel import kernel

# Shape suffixes: M rows, C channels, W inputs that a convolution looks back at, B segments.
Floats = NDArray[np.float32]
Places = NDArray[np.int64]


@kernel
def convolve_floats(
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
