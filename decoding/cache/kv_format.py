"""How rows of keys and values lie in a store: as floats of a dtype, or as codes of int8 with a scale for each `SCALED`.

The slow reference of `decoding.kernels.cpu.attention.formats`, with the same bits, and what stores and other backends
use. A store's dtype names its format. Invariant: what a row is stored as depends on its own numbers alone.
"""

from __future__ import annotations

import torch

from decoding.kernels.cpu.attention.formats import MOST_CODE, NO_NUMBER
from decoding.kernels.layout import SCALED, num_scale_bytes

# Shape suffixes: W numbers of a row, C columns of a stored one, G groups of numbers with a scale, N numbers of a group,
# S bytes of the scales.

_NAMES = {torch.float8_e4m3fn: "fp8"}
_DTYPES = {name: dtype for dtype, name in _NAMES.items()}


def name_of(dtype: torch.dtype) -> str:
    """As `--kv-dtype` has it."""
    return _NAMES.get(dtype, str(dtype).removeprefix("torch."))


def dtype_of(name: str) -> torch.dtype:
    """Of a store, by the name that `--kv-dtype` has for it."""
    dtype: torch.dtype = _DTYPES[name] if name in _DTYPES else getattr(torch, name)
    return dtype


def row_width(dtype: torch.dtype, width: int) -> int:
    """The columns of a row of `width` numbers."""
    return width + (num_scale_bytes(width) if dtype == torch.int8 else 0)


def pack_rows(rows_W: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """dtype [.., C]: rows as they are stored. rows_W: [.., W], of any float. Too large numbers become the largest of
    float16 or fp8."""
    if dtype == torch.int8:
        return _pack_codes(rows_W.float())
    if dtype in (torch.float16, torch.float8_e4m3fn) and rows_W.dtype != dtype:
        most, rows_W = torch.finfo(dtype).max, rows_W.float()
        rows_W = torch.where(rows_W.isfinite(), rows_W.clamp(-most, most), torch.nan)
    return rows_W.to(dtype)


def unpack_rows(rows_C: torch.Tensor, width: int) -> torch.Tensor:
    """[.., W]: floats of the stored dtype, or float32 where it is int8."""
    if rows_C.dtype != torch.int8:
        return rows_C
    bytes_S = rows_C[..., width:].clone(memory_format=torch.contiguous_format)  # aligned
    scales_G = (bytes_S.view(torch.int16).int() << 16).view(torch.float32)
    return rows_C[..., :width].float() * scales_G.repeat_interleave(SCALED, dim=-1)[..., :width]


def _pack_codes(rows_W: torch.Tensor) -> torch.Tensor:
    width = rows_W.shape[-1]
    rows_GN = torch.nn.functional.pad(rows_W, (0, -width % SCALED)).reshape(*rows_W.shape[:-1], -1, SCALED)
    largest_G = rows_GN.abs().amax(-1)
    bits_G = ((largest_G / MOST_CODE).view(torch.int32) + 0xFFFF) >> 16  # bfloat16, rounded up
    bits_G = torch.where(largest_G < torch.inf, bits_G, NO_NUMBER)
    scales_G1 = (bits_G << 16).view(torch.float32)[..., None]
    codes_W = torch.where(scales_G1 > 0, (rows_GN / scales_G1).round(), 0.0).flatten(-2)[..., :width]
    return torch.cat((codes_W.to(torch.int8), bits_G.to(torch.int16).view(torch.int8)), dim=-1)
