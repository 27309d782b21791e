"""Tile sizes of the attention kernel: a table of defaults, and sizes measured on a device, kept under its name.

Knows nothing of how sizes are measured. Invariant: a tile depends only on layer, dtype and device, so that a token's
sums run in the same order whatever else is in its step.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import msgspec
import torch

from decoding.core.files.output import is_json_of, write_output
from decoding.core.layer import LayerSpec
from decoding.kernels.cache import kernel_folder
from decoding.kernels.gpu import card


class Tile(NamedTuple):
    """pairs: (token, head) pairs of a tile. keys: of a block, a divisor of 512 and a multiple of 16. many: the pairs of
    tiles of long chains, 0 where the usual ones do; they have as many pairs a warp, and must multiply and add up by the
    same instructions."""

    pairs: int
    keys: int
    num_warps: int
    num_stages: int
    many: int = 0


# By compute capability and padded width, for 16-bit numbers: `python -m decoding.bench.kernels.compile` shows that
# none of them spills registers. Hopper's and Blackwell's tensor cores take 64 rows at once, Ampere's 16.
DEFAULTS = {
    (8, 0): {64: Tile(64, 32, 4, 3), 128: Tile(32, 32, 4, 3), 256: Tile(16, 32, 4, 3)},
    (9, 0): {64: Tile(64, 64, 4, 3, 128), 128: Tile(64, 64, 4, 3, 128), 256: Tile(16, 32, 4, 3)},
    (10, 0): {64: Tile(64, 64, 4, 3), 128: Tile(64, 64, 8, 3), 256: Tile(32, 64, 8, 3)},
}
WIDEST = Tile(16, 16, 8, 2)  # heads beyond 256 columns
EXACT = Tile(16, 32, 4, 2)  # float32, which no tensor core multiplies exactly


def padded_width(width: int) -> int:
    """`width` padded to the power of two that a kernel computes with."""
    return max(16, 1 << (width - 1).bit_length())


def default_tile(width: int, itemsize: int, capability: tuple[int, int]) -> Tile:
    """The table's tile for heads of `width` padded columns. capability: (0, 0) is Triton's interpreter."""
    if capability == (0, 0):
        return Tile(64, 64, 4, 1, 128)
    if width > 256:
        return WIDEST
    if itemsize > 2:
        return EXACT
    known = max((each for each in DEFAULTS if each <= capability), default=min(DEFAULTS))
    return DEFAULTS[known][max(64, width)]


def head_name(layer: LayerSpec, dtype: torch.dtype) -> str:
    """The name under which a layer's tile is kept."""
    return f"{str(dtype).removeprefix('torch.')} {layer.group}x{layer.key_dim}x{layer.value_dim}"


def tile_of(layer: LayerSpec, dtype: torch.dtype, device: torch.device) -> Tile:
    """The tile measured on such a device, else the table's."""
    width = padded_width(max(layer.key_dim, layer.value_dim))
    kept = read_tiles(card.card_name(device)).get(head_name(layer, dtype))
    return kept or default_tile(width, dtype.itemsize, card.capability(device))


def read_tiles(name: str) -> dict[str, Tile]:
    """The tiles measured on a device, by head name; empty if there are none or the file cannot be read."""
    path = _path(name)
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Tile]) if path.is_file() else {}
    except (OSError, msgspec.MsgspecError):
        return {}


def keep_tiles(name: str, tiles: dict[str, Tile]) -> Path:
    """Add tiles measured on a device to its file; return the file's path. Raises ConfigError where it cannot be
    written or holds no tiles."""
    path = _path(name)
    write_output(path, msgspec.json.encode(read_tiles(name) | tiles), is_json_of(dict[str, Tile]))
    return path


def _path(name: str) -> Path:
    """The file lies beside the folders of compiled kernels, so that it outlives a change of the sources."""
    return kernel_folder().parent / f"tiles-{re.sub('[^A-Za-z0-9]+', '-', name)}.json"
