"""What `--weights` may say beside "auto": where such weights can be multiplied, and how a model's layers are replaced.

int8 has one scale for each output where the processor has int8 dot products; elsewhere one for 32 weights, as a GGUF
file of Q8_0 has. Knows no formats of files.
"""

from __future__ import annotations

import torch
from transformers import PreTrainedModel

from decoding.config import Weights
from decoding.errors import ConfigError
from decoding.model.linear.int4 import KINDS, pack_groups, pack_int4
from decoding.model.linear.int8 import can_round_to_int8, round_linears
from decoding.model.linear.packed import can_pack

BITS, GROUP = 8, 32  # of int8 weights without int8 dot products
GROUPED_INT8 = "grouped int8"


def check_rounding(weights: Weights, device: torch.device, dtype: torch.dtype) -> None:
    """Raise ConfigError if weights that are rounded in this way cannot be multiplied here."""
    if weights != "auto" and not can_pack(device, dtype):
        raise ConfigError(
            f"weights {weights!r} need the CPU, and float32 or (with AVX-512 or AVX-NE-CONVERT) bfloat16, "
            f"not {device} and {dtype}"
        )


def round_weights(weights: Weights, model: PreTrainedModel) -> str:
    """Replace the layers of `model`; the name of what they have become. Originals are dropped."""
    assert weights != "auto"
    if weights == "int4":
        pack_int4(model)
        return weights
    if can_round_to_int8(model.device, model.dtype):
        round_linears(model)
        return weights
    pack_groups(model, BITS, BITS)
    return GROUPED_INT8


def kinds_of(weights: Weights, device: torch.device, dtype: torch.dtype) -> set[tuple[int, int]]:
    """Bits and group of the packed weights that rounding makes."""
    if weights == "int4":
        return KINDS
    return {(BITS, GROUP)} if weights == "int8" and not can_round_to_int8(device, dtype) else set()
