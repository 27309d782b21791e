"""Whether the kernels of this room can be had. Imports nothing of Triton's."""

from __future__ import annotations

from importlib.util import find_spec

import torch


def has_kernels(device: torch.device) -> bool:
    return device.type == "cuda" and find_spec("triton") is not None
