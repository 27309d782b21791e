"""Compile-time constants of the kernels: a layer's shape and mask, a tile's sizes, and Triton's options.

Knows nothing of steps. Invariant: constants are the same in every step, so that a layer is compiled once.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from decoding.attention.triton.tiles import Tile, padded_width
from decoding.core.layer import LayerSpec
from decoding.kernels.gpu.toolchain import NO_FUSION


class Constants(NamedTuple):
    """Each kernel's constants, by the names of its parameters and of Triton's options."""

    store: dict[str, Any]
    attend: dict[str, Any]
    merge: dict[str, Any]


def constants_of(layer: LayerSpec, tile: Tile, kind: int, num_kinds: int) -> Constants:
    """The constants of one layer. kind: the number of the work list that the layer follows, of `num_kinds`."""
    values = {"VALUE_DIM": layer.value_dim, "VALUE_WIDTH": padded_width(layer.value_dim)} | NO_FUSION
    heads = values | {
        "NUM_KV_HEADS": layer.num_kv_heads,
        "KEY_DIM": layer.key_dim,
        "KEY_WIDTH": padded_width(layer.key_dim),
    }
    attend = heads | {
        "KIND": kind,
        "NUM_KINDS": num_kinds,
        "GROUP": layer.group,
        "WINDOW": layer.window,
        "CHUNK": layer.chunk,
        "SOFTCAP": layer.softcap,
        "HAS_SINKS": layer.sinks is not None,
        "M": tile.pairs,
        "N": tile.keys,
        "num_warps": tile.num_warps,
        "num_stages": tile.num_stages,
    }
    return Constants(heads | {"num_warps": 4}, attend, values | {"NUM_KINDS": num_kinds, "num_warps": 4})
