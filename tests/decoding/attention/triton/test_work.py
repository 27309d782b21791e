"""Every (row, head) pair meets every range of its segment's keys once; sizes are found, kept and read again."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

from decoding.attention.triton import tiles
from decoding.attention.triton.tiles import Tile, default_tile, head_name, keep_tiles, read_tiles, tile_of
from decoding.attention.triton.work import MOST_RANGES, SEGMENT_WORDS, SPLIT, Kind, most_work, share_out
from decoding.cache.batch import Segment, StepBatch, pack
from decoding.cache.kv_cache import KvCache
from decoding.cache.kv_store import KvStore
from decoding.core.layer import LayerSpec

CPU = torch.device("cpu")
LAYER = LayerSpec(index=0, num_query_heads=6, num_kv_heads=2, key_dim=2, value_dim=2, scaling=1.0)
KINDS = [Kind(3, 16), Kind(1, 64)]


def batch_of(*shapes: tuple[int, int]) -> StepBatch:
    """Chains of so many rows after so many committed ones."""
    cache = KvCache(KvStore([LAYER], 20_000, torch.float32, CPU))
    segments = []
    for prefix, num_rows in shapes:
        rows = cache.new_rows(prefix + num_rows)
        rows.length = prefix
        segments.append(Segment(rows, np.zeros(num_rows, np.int32)))
    return pack(segments, cache.store)


def test_each_pair_meets_each_range_of_its_keys_once() -> None:
    shapes = [(0, 1), (255, 1), (256, 65), (10_000, 7), (9_000, 700)]
    work = share_out(batch_of(*shapes), KINDS)
    words, num_partials = work.words, 0
    segments = words[2 * len(KINDS) :][: SEGMENT_WORDS * len(shapes)].reshape(-1, SEGMENT_WORDS)
    for (prefix, num_rows), (range_len, num_ranges, first_partial) in zip(shapes, segments.tolist(), strict=True):
        assert range_len % SPLIT == 0
        assert range_len * (num_ranges - 1) < prefix + num_rows <= range_len * num_ranges
        assert num_ranges <= MOST_RANGES
        assert first_partial == num_partials
        num_partials += num_rows * num_ranges if num_ranges > 1 else 0
    assert work.num_partials == num_partials
    for kind, (count, place) in zip(KINDS, words[: 2 * len(KINDS)].reshape(-1, 2).tolist(), strict=True):
        met = Counter(
            (segment, pair, number)
            for segment, first, number in words[place : place + 3 * count].reshape(-1, 3).tolist()
            for pair in range(first, min(first + kind.pairs, shapes[segment][1] * kind.group))
        )
        assert set(met.values()) == {1}
        assert len(met) == sum(
            num_rows * kind.group * int(own[1]) for (_, num_rows), own in zip(shapes, segments, strict=True)
        )


def test_no_step_has_more_work_than_there_is_room_for() -> None:
    for shapes in ([(0, 1)] * 32, [(9_000, 1)] * 32, [(9_000, 32)], [(300, 16), (8_000, 16)]):
        work, room = share_out(batch_of(*shapes), KINDS), most_work(32, max(map(sum, shapes)), KINDS)
        assert len(work.words) <= room.words
        assert work.num_partials <= room.partials


@pytest.mark.parametrize("capability", [(8, 6), (9, 0), (12, 0)])
def test_every_device_and_width_has_a_tile(capability: tuple[int, int]) -> None:
    for width in (16, 64, 128, 256, 512):
        for itemsize in (2, 4):
            tile = default_tile(width, itemsize, capability)
            assert SPLIT % tile.keys == 0


def test_what_was_measured_on_a_device_is_taken_there_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiles, "kernel_folder", lambda: tmp_path / "gander-0")
    table, measured = tile_of(LAYER, torch.float16, CPU), Tile(16, 32, 8, 2)
    keep_tiles("another device", {head_name(LAYER, torch.float16): measured})
    assert tile_of(LAYER, torch.float16, CPU) == table
    path = keep_tiles(tiles.INTERPRETER, {head_name(LAYER, torch.float16): measured})
    keep_tiles(tiles.INTERPRETER, {"other heads": table})
    assert tile_of(LAYER, torch.float16, CPU) == measured
    assert tile_of(LAYER, torch.float32, CPU) == table
    path.write_text("{")
    assert read_tiles(tiles.INTERPRETER) == {}
