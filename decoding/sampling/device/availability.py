"""Whether the kernels of this room can run. Does not import Triton."""

from __future__ import annotations

from importlib.util import find_spec

import torch


def has_kernels(device: torch.device) -> bool:
    return device.type == "cuda" and find_spec("triton") is not None
