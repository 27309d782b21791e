"""The quickest tile is taken of those that a device can run."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed: its kernels are not tuned")

from triton.runtime.errors import OutOfResources

from decoding.attention.triton.tiles import Tile
from decoding.bench.kernels.tune import CHUNK, CONTEXT, NODES, REQUESTS, candidates, quickest, step_over
from decoding.cache.block_pool import num_blocks_for
from decoding.cache.kv_store import KvStore
from decoding.core.layer import LayerSpec
from decoding.kernels.gpu.work_list import SPLIT


def test_the_quickest_tile_that_fits_is_taken() -> None:
    def seconds_of(tile: Tile) -> float:
        if tile.pairs == 128:
            raise OutOfResources(300_000, 232_448, "shared memory")
        return 1.0 / tile.pairs + 0.1 * (tile.num_warps == 4) + 0.01 * tile.num_stages

    tiles = list(candidates())
    assert all(SPLIT % tile.keys == 0 for tile in tiles)
    assert quickest(tiles, seconds_of) == Tile(64, 32, 8, 2)


def test_the_step_that_is_timed_holds_trees_and_a_chunk() -> None:
    layer = LayerSpec(index=0, num_query_heads=1, num_kv_heads=1, key_dim=2, value_dim=2, scaling=1.0)
    store = KvStore([layer], (REQUESTS + 1) * num_blocks_for(CONTEXT + CHUNK), torch.float32, torch.device("cpu"))
    batch = step_over(store)
    assert batch.num_tokens == REQUESTS * NODES + CHUNK
    assert batch.is_chain.tolist() == [False] * REQUESTS + [True]
