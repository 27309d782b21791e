"""Compile-time constants of the kernels: a layer's shape and mask, a tile's sizes, and Triton's options.

Knows nothing of steps. Invariant: constants are the same in every step, so that a layer is compiled once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from decoding.attention.triton.tiles import Tile, padded_width
from decoding.attention.triton.work import Kind, lists_of
from decoding.core.layer import LayerSpec
from decoding.kernels.gpu.toolchain import NO_FUSION


class Constants(NamedTuple):
    """Each kernel's constants, by the names of its parameters and of Triton's options. attend: for each of the layer's
    sizes of tiles."""

    store: dict[str, Any]
    attend: list[dict[str, Any]]
    merge: dict[str, Any]


def kind_of(layer: LayerSpec, tile: Tile) -> Kind:
    return Kind(layer.group, layer.num_kv_heads, tile.keys, tile.pairs, tile.many)


def constants_of(layer: LayerSpec, tile: Tile, kinds: Sequence[Kind]) -> Constants:
    """The constants of one layer. kinds: of all layers, which say what a step's lists are."""
    lists, kind = lists_of(kinds), kind_of(layer, tile)
    values = {"VALUE_DIM": layer.value_dim, "VALUE_WIDTH": padded_width(layer.value_dim)} | NO_FUSION
    heads = values | {
        "NUM_KV_HEADS": layer.num_kv_heads,
        "KEY_DIM": layer.key_dim,
        "KEY_WIDTH": padded_width(layer.key_dim),
    }
    attend = heads | {
        "GROUP": layer.group,
        "WINDOW": layer.window,
        "CHUNK": layer.chunk,
        "SOFTCAP": layer.softcap,
        "HAS_SINKS": layer.sinks is not None,
        "N": tile.keys,
        "num_stages": tile.num_stages,
    }
    sizes = [
        {
            "LIST": lists.index((kind, pairs)),
            "HAS_MANY": pairs == tile.many,
            "M": pairs,
            "num_warps": tile.num_warps * pairs // tile.pairs,
        }
        for pairs in kind.sizes
    ]
    merge = values | {"NUM_LISTS": len(lists), "num_warps": 4}
    return Constants(heads | {"num_warps": 4}, [attend | size for size in sizes], merge)
