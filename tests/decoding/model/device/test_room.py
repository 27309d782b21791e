"""Captured forwards have room for every step that a GPU's limits allow, and one that they have no room for is told."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from decoding.attention.padded import PaddedAttention
from decoding.attention.triton.tiles import Tile
from decoding.cache.batch import Segment, StepBatch, pack
from decoding.cache.block_pool import BlockTable, num_blocks_for
from decoding.cache.kv_cache import KvCache
from decoding.cache.kv_store import KvRows, KvStore
from decoding.config import EngineConfig
from decoding.core.layer import LayerSpec
from decoding.costs.price import CostCurve
from decoding.engine.limits import limits_for
from decoding.model.device.graph_runner import BUCKETS, FIXED_ROWS, GraphRunner, buckets_for
from decoding.model.target_model import TargetModel
from tests.models import tiny
from tests.recording import RecordingCapture
from tests.trees import random_parents

CPU = torch.device("cpu")
LAYER = LayerSpec(index=0, num_query_heads=4, num_kv_heads=1, key_dim=2, value_dim=2, scaling=1.0)
CONFIG = EngineConfig(attention="padded", max_model_len=4096, threads=1)
Shape = tuple[
    int, int, int
]  # of a sequence: committed tokens, nodes of its tree, or of a chunk of a prompt if negative


class Nothing:
    """A model that is never run."""

    num_logits, taps = 4, ()


def batch_of(store: KvStore, shapes: list[Shape], rng: np.random.Generator) -> StepBatch:
    """Sequences that share a prefix, so that any number of them is as long as the store."""
    segments = []
    for length, size, num_logits in shapes:
        table = BlockTable()
        for block in range(num_blocks_for(length + abs(size))):
            table.append(block)
        parents = random_parents(size, rng) if size > 0 else None
        segments.append(Segment(KvRows(table, length), np.zeros(abs(size), np.int32), parents, num_logits))
    return pack(segments, store)


def steps(longest: int, running: int, tree_tokens: int, rows: int, rng: np.random.Generator) -> Iterator[list[Shape]]:
    """As large as limits allow, with every prefix as long as it can be: roots alone, trees of one size, of the largest,
    of any sizes, and beside them a prompt's chunk or many short ones."""
    for size in (1, 12, 16, 64):
        count = min(running - 1, tree_tokens // size)
        trees = [(longest - 64, size, size)] * count
        left = rows - count * size
        yield trees
        if left > 256:
            chunk = min(left, longest // 2)
            yield [*trees, (longest - chunk, -chunk, 256)]
        yield [*trees, *[(longest - 64, -40, 0)] * min(running - count, left // 40)]
    sizes = rng.integers(1, 65, running)
    sizes = sizes[np.cumsum(sizes) <= tree_tokens]
    yield [(int(longest - 64 - rng.integers(0, longest // 2)), int(size), int(size)) for size in sizes]


@pytest.mark.parametrize("longest", [1_000, 16_384, 131_072])
@pytest.mark.parametrize("exact", [False, True])
def test_every_step_that_limits_allow_is_replayed(longest: int, exact: bool) -> None:
    pytest.importorskip("triton", reason="Triton is not installed")
    from decoding.attention.triton.triton_attention import TritonAttention

    curve = CostCurve(base=1.0, token=0.001, key=0.0)
    limits = limits_for(EngineConfig(exact=exact), curve, "cuda", 10**7)
    assert limits.max_batch_rows <= BUCKETS[-1]
    attention = TritonAttention([LAYER], torch.float32, CPU, [Tile(64, 32, 4, 3)], exact)
    store = KvStore([LAYER], num_blocks_for(longest), torch.float32, CPU)
    buckets = buckets_for(limits.max_batch_rows, FIXED_ROWS)
    runner = GraphRunner(Nothing(), attention, store, longest, buckets)  # type: ignore[arg-type]
    rng = np.random.default_rng(0)
    room = runner._buffers.room
    for shapes in steps(longest, limits.max_running, limits.max_tree_tokens, limits.max_batch_rows, rng):
        batch = batch_of(store, shapes, rng)
        assert batch.num_tokens <= limits.max_batch_rows
        assert room.shortages(batch, attention.share_out(batch)) == []


def test_a_step_that_is_not_captured_is_told_and_ever_fewer_of_them(caplog: pytest.LogCaptureFixture) -> None:
    model = TargetModel.from_model(tiny("llama", max_position_embeddings=4096), CONFIG, RecordingCapture())
    cache = KvCache(model.new_store(80))
    runner = GraphRunner(model, PaddedAttention(), cache.store, 128, (1, 8))
    runner.capture(RecordingCapture(), lambda _sentence, _fraction: None)
    rows = cache.new_rows(200)
    rows.length = 150
    with caplog.at_level(logging.WARNING):
        runner.launch(pack([Segment(cache.new_rows(8), np.zeros(8, np.int32))], cache.store))
        assert caplog.messages == []
        for _ in range(5):
            runner.launch(pack([Segment(rows, np.zeros(1, np.int32))], cache.store))
        runner.launch(pack([Segment(cache.new_rows(9), np.zeros(9, np.int32))], cache.store))
    assert [message.rpartition(": ")[2] for message in caplog.messages] == ["1.", "2.", "4."]
    assert "it has 151 keys of a sequence where 128 have room." in caplog.text
