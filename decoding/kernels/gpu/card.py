"""What a card can do, and whether Triton's kernels run on it. Imports Triton only where there is a card.

A device that is no card is the processor on which Triton interprets kernels.
"""

from __future__ import annotations

import torch

from decoding.kernels.gpu.toolchain import why_no_triton

INTERPRETER = "interpreter"


def has_kernels(device: torch.device) -> bool:
    """Whether compiled kernels can be launched there."""
    return device.type == "cuda" and torch.cuda.is_available() and why_no_triton() is None


def card_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else INTERPRETER


def capability(device: torch.device) -> tuple[int, int]:
    """(0, 0) is Triton's interpreter."""
    return torch.cuda.get_device_capability(device) if device.type == "cuda" else (0, 0)


def num_processors(device: torch.device) -> int | None:
    """The card's multiprocessors."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else None
