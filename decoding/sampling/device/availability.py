"""Whether the kernels of this room can run. Imports Triton only where there is a GPU."""

from __future__ import annotations

import torch

from decoding.kernels.gpu.toolchain import why_no_triton


def has_kernels(device: torch.device) -> bool:
    return device.type == "cuda" and why_no_triton() is None
