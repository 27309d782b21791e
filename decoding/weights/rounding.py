"""What `--weights` may say beside "auto": which kinds floats are rounded to, and where these can be multiplied.

int8 has one scale for each output where the processor has int8 dot products; elsewhere one for 32 weights, as a GGUF
file of Q8_0 has. Knows no formats of files.
"""

from __future__ import annotations

import torch

from decoding.config import Weights
from decoding.errors import ConfigError
from decoding.kernels.processor import multiplies_bytes
from decoding.weights.kinds import GROUPED_INT8, INT4, INT6, INT8, KINDS, Kind
from decoding.weights.numbers.onednn_floats import can_pack


def check_rounding(weights: Weights, device: torch.device, dtype: torch.dtype) -> None:
    """Raise ConfigError if weights that are rounded in this way cannot be multiplied here."""
    if weights != "auto" and not can_pack(device, dtype):
        raise ConfigError(
            f"weights {weights!r} need the CPU, and float32 or (with AVX-512 or AVX-NE-CONVERT) bfloat16, "
            f"not {device} and {dtype}"
        )


def can_round_to_int8(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether the processor has int8 dot products, and can pack layers of `dtype` at all."""
    return device.type == "cpu" and multiplies_bytes() and can_pack(device, dtype)


def rounded_kinds(weights: Weights, device: torch.device, dtype: torch.dtype) -> tuple[Kind, Kind]:
    """That of linear layers, and that of head and embedding, whose errors no later layer evens out."""
    assert weights != "auto"
    if weights == "int4":
        return KINDS[INT4], KINDS[INT6]
    kind = KINDS[INT8 if can_round_to_int8(device, dtype) else GROUPED_INT8]
    return kind, kind
