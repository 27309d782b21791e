"""Which attention backend runs a model of given layers, by the name that a configuration has for it.

Knows all backends. Invariant: Triton is imported only where it is named, since it may not be installed elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from decoding.attention.backend import AttentionBackend
from decoding.attention.exact import ExactAttention
from decoding.attention.padded import PaddedAttention
from decoding.attention.reference import ReferenceAttention
from decoding.attention.sdpa import SdpaAttention
from decoding.config import Attention
from decoding.core.layer import LayerSpec


def new_backend(
    attention: Attention,
    layers: Sequence[LayerSpec],
    dtype: torch.dtype,
    device: torch.device,
    is_row_exact: bool = False,
) -> AttentionBackend:
    """attention: not "auto". is_row_exact: of prompts, too."""
    if attention == "triton":
        from decoding.attention.triton.triton_attention import TritonAttention

        return TritonAttention(layers, dtype, device, is_exact=is_row_exact)
    if attention == "exact":
        return ExactAttention(layers)
    if attention == "padded":
        return PaddedAttention()
    return ReferenceAttention() if attention == "reference" else SdpaAttention(device)


def tiles_of(attention: Attention, layers: Sequence[LayerSpec], dtype: torch.dtype, device: torch.device) -> list[Any]:
    """The sizes in which a backend sums, where they are tuned to the device."""
    if attention != "triton":
        return []
    from decoding.attention.triton.tiles import tile_of

    return [tile_of(layer, dtype, device) for layer in layers]
