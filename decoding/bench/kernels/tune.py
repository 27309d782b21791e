"""Finds the attention kernel's quickest tiles on this GPU for a model's layers, and stores them for the engine.

`python -m decoding.bench.kernels.tune MODEL` takes a minute or two for each kind of layer, mostly for compiling.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import product

import numpy as np
import torch
from triton import testing
from triton.runtime.errors import OutOfResources

from decoding.attention.triton.tiles import Tile, head_name, keep_tiles
from decoding.attention.triton.triton_attention import TritonAttention
from decoding.cache.batch import Segment, StepBatch, pack
from decoding.cache.block_pool import num_blocks_for
from decoding.cache.kv_cache import KvCache
from decoding.cache.kv_store import KvStore
from decoding.config import EngineConfig
from decoding.core.layer import LayerSpec
from decoding.kernels.gpu.card import card_name
from decoding.model.target_model import TargetModel

CONTEXT, REQUESTS, NODES, CHUNK = 4096, 8, 16, 128  # the timed step: trees after contexts, and one prompt chunk


def candidates() -> Iterator[Tile]:
    for sizes in product((16, 32, 64, 128), (32, 64), (4, 8), (2, 3)):
        yield Tile(*sizes)


def quickest(tiles: Iterable[Tile], seconds_of: Callable[[Tile], float]) -> Tile:
    """The quickest of the tiles that the device can run."""
    found = {}
    for tile in tiles:
        try:
            found[tile] = seconds_of(tile)
        except OutOfResources:
            continue
    return min(found, key=found.__getitem__)


def step_over(store: KvStore) -> StepBatch:
    """A step with trees after long contexts, whose keys and values are zeros, and a chunk of a prompt."""
    cache, parents = KvCache(store), (np.arange(-1, NODES - 1) // 2).astype(np.int32)
    segments = []
    for number in range(REQUESTS + 1):
        count = CHUNK if number == REQUESTS else NODES
        rows = cache.new_rows(CONTEXT + count)
        rows.length = CONTEXT
        segments.append(Segment(rows, np.zeros(count, np.int32), None if number == REQUESTS else parents))
    return pack(segments, store)


def tune(layer: LayerSpec, dtype: torch.dtype, device: torch.device) -> Tile:
    layer = replace(layer, index=0)
    store = KvStore([layer], (REQUESTS + 1) * num_blocks_for(CONTEXT + CHUNK), dtype, device)
    batch = step_over(store)
    query, key, value = (
        torch.randn(1, heads, batch.num_tokens, width, dtype=dtype, device=device)
        for heads, width in (
            (layer.num_query_heads, layer.key_dim),
            (layer.num_kv_heads, layer.key_dim),
            (layer.num_kv_heads, layer.value_dim),
        )
    )

    def seconds_of(tile: Tile) -> float:
        backend = TritonAttention([layer], dtype, device, [tile])
        plan = backend.prepare(batch)
        return float(testing.do_bench(lambda: backend.attend(layer, query, key, value, plan)))

    return quickest(candidates(), seconds_of)


def main(model: str) -> None:
    target = TargetModel.load(EngineConfig(model=model, device="cuda", graphs=False), lambda *_: None)
    layers = {head_name(layer, target.dtype): layer for layer in target.layers}
    tiles = {name: tune(layer, target.dtype, target.device) for name, layer in layers.items()}
    for name, tile in tiles.items():
        print(f"{name}: {tile}")  # noqa: T201
    print(f"kept in {keep_tiles(card_name(target.device), tiles)}")  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1])
