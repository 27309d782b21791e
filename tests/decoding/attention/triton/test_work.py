"""Every (row, head) pair meets each key of its path once, in order; sizes are found, kept and read again."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from decoding.attention.triton import tiles
from decoding.attention.triton.tiles import Tile, default_tile, head_name, keep_tiles, read_tiles, tile_of
from decoding.attention.triton.work import (
    ALL_PARTIALS,
    MOST_PARTIALS,
    Kind,
    most_work,
    share_out,
)
from decoding.cache.batch import Segment, StepBatch, pack
from decoding.cache.kv_cache import KvCache
from decoding.cache.kv_store import KvStore
from decoding.core.layer import LayerSpec
from decoding.core.tree import IntArray
from decoding.kernels.gpu.card import INTERPRETER
from decoding.kernels.gpu.work_list import ITEM_WORDS, MOST_RANGES, SEGMENT_WORDS, SPLIT, place_of, start_of
from tests.trees import random_parents

CPU = torch.device("cpu")
LAYER = LayerSpec(index=0, num_query_heads=6, num_kv_heads=2, key_dim=2, value_dim=2, scaling=1.0)
KINDS = [Kind(3, 2, 64, 16, many=48), Kind(1, 6, 128, 64, alone=16)]


def batch_of(*shapes: tuple[int, int]) -> StepBatch:
    """Chains of so many rows after so many committed ones."""
    cache = KvCache(KvStore([LAYER], 70_000, torch.float32, CPU))
    segments = []
    for prefix, num_rows in shapes:
        rows = cache.new_rows(prefix + num_rows)
        rows.length = prefix
        segments.append(Segment(rows, np.zeros(num_rows, np.int32)))
    return pack(segments, cache.store)


def test_a_position_is_in_one_range_whatever_comes_after_it() -> None:
    starts = [start_of(place) for place in range(MOST_RANGES)]
    assert starts == sorted(set(starts))
    assert all(start % SPLIT == 0 for start in starts)
    for place, (start, end) in enumerate(pairwise(starts)):
        assert (place_of(start), place_of(end - 1)) == (place, place)
    assert starts[-1] > 200_000
    assert place_of(10 * starts[-1]) == MOST_RANGES - 1


def tree_batch(rng: np.random.Generator) -> StepBatch:
    """Trees after chunks and alone, of which some have been begun before, of several roots, and chains, long and short,
    some of which end where a range does."""
    cache = KvCache(KvStore([LAYER], 70_000, torch.float32, CPU))
    segments = []
    for prefix, chunk, size in ((0, 0, 40), (127, 0, 9), (250, 20, 30), (4090, 0, 24), (300, 150, 0), (8160, 0, 33)):
        num_written = int(rng.integers(0, 5)) if chunk == 0 else 0
        parents = np.concatenate([np.arange(-1, chunk - 1), random_parents(size + 1, rng)[:size] + chunk])
        if chunk == 0 and size > 2:
            parents[1] = -1
        rows = cache.new_rows(prefix + len(parents))
        rows.length = prefix
        tokens = np.zeros(len(parents) - num_written, np.int32)
        segments.append(Segment(rows, tokens, parents.astype(np.int32), num_written=num_written))
    return pack(segments, cache.store)


@pytest.mark.parametrize("seed", range(4))
def test_each_row_meets_the_key_of_each_of_its_positions_once(seed: int) -> None:
    batch = tree_batch(np.random.default_rng(seed))
    work = share_out(batch, KINDS)
    words, num_partials = work.words, 0
    segments = words[2 * len(KINDS) :][: SEGMENT_WORDS * batch.num_segments].reshape(-1, SEGMENT_WORDS)
    num_rows = np.diff(batch.offsets)
    for segment, (stride, num_ranges, first_partial) in enumerate(segments.tolist()):
        last = int(batch.positions_P[batch.tree_offsets[segment] : batch.tree_offsets[segment + 1]].max())
        assert stride == 1
        assert num_ranges == place_of(last) + 1
        assert first_partial == num_partials
        num_partials += int(num_rows[segment]) * num_ranges if num_ranges > 1 else 0
    assert work.num_partials == num_partials
    for kind, (count, first) in zip(KINDS, words[: 2 * len(KINDS)].reshape(-1, 2).tolist(), strict=True):
        met: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
        for item in words[first : first + ITEM_WORDS * count].reshape(-1, ITEM_WORDS).tolist():
            for pair, position, key in keys_of(batch, kind, item, words):
                met[item[0], pair].append((position, key))
        assert len(met) == sum(num_rows) * kind.group
        for (segment, pair), found in met.items():
            expected = list(enumerate(path_keys(batch, segment, pair // kind.group)))
            assert sorted(found) == expected, (segment, pair)


def test_prompts_of_many_tokens_have_coarser_ranges() -> None:
    for num_rows, is_coarser in ((64, False), (700, True)):
        work = share_out(batch_of((60_000, num_rows)), KINDS)
        stride, num_ranges, _ = work.words[2 * len(KINDS) :][:SEGMENT_WORDS].tolist()
        assert (stride > 1) == is_coarser
        assert num_ranges == place_of(60_000 + num_rows - 1) // stride + 1
        assert work.num_partials == num_rows * num_ranges <= MOST_PARTIALS + num_rows


def test_where_prompts_are_to_be_exact_they_are_cut_where_a_single_token_is() -> None:
    """At the price of partial sums of all of their tokens, which there is room for."""
    batch = batch_of((60_000, 700))
    work, room = share_out(batch, KINDS, ALL_PARTIALS), most_work(1024, 60_700, KINDS, ALL_PARTIALS)
    stride, num_ranges, _ = work.words[2 * len(KINDS) :][:SEGMENT_WORDS].tolist()
    assert (stride, num_ranges) == (1, place_of(60_699) + 1)
    assert work.num_partials == 700 * num_ranges <= room.partials
    assert len(work.words) <= room.words


def keys_of(batch: StepBatch, kind: Kind, item: list[int], words: IntArray) -> Iterator[tuple[int, int, int]]:
    """What the pairs of an item meet: pair, position and key, an index among the segment's."""
    segment, first_pair, _, start, end, path = item
    num_rows, base = int(batch.offsets[segment + 1] - batch.offsets[segment]), 1 << 30
    if path >= 0:
        num_listed, base = words[path : path + 2].tolist()
        rows, nodes = words[path + 2 :][:num_listed].tolist(), words[path + 2 + num_listed :]
    else:
        rows = list(range(num_rows))
    for place in range(first_pair, min(first_pair + kind.pairs, len(rows) * kind.group)):
        row = rows[place // kind.group]
        own = int(batch.positions_M[batch.offsets[segment] + row])
        for position in range(start, min(end, own + 1)):
            key = position if position < base else int(batch.prefix_lens[segment] + nodes[position - base])
            yield row * kind.group + place % kind.group, position, key


def path_keys(batch: StepBatch, segment: int, row: int) -> list[int]:
    """The keys that a row sees, in order of their positions."""
    first, prefix = int(batch.tree_offsets[segment]), int(batch.prefix_lens[segment])
    node, path = int(batch.num_written[segment]) + row, []
    while node >= 0:
        path.append(prefix + node)
        node = int(batch.parents_P[first + node])
    return [*range(prefix), *reversed(path)]


def test_no_usual_step_has_more_work_than_there_is_room_for() -> None:
    loads: list[tuple[int, list[tuple[int, int]]]] = [
        (32, [(0, 1)] * 32),
        (32, [(9_000, 1)] * 32),
        (32, [(9_000, 32)]),
        (32, [(300, 16), (8_000, 16)]),
        (256, [(4_000, 1)] * 256),
        (2048, [(1_000, 2016), *[(2_000, 1)] * 32]),
    ]
    for num_rows, shapes in loads:
        work, room = share_out(batch_of(*shapes), KINDS), most_work(num_rows, max(map(sum, shapes)), KINDS)
        assert len(work.words) <= room.words
        assert work.num_partials <= room.partials
    work, room = share_out(tree_batch(np.random.default_rng(0)), KINDS), most_work(1024, 8200, KINDS)
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
    path = keep_tiles(INTERPRETER, {head_name(LAYER, torch.float16): measured})
    keep_tiles(INTERPRETER, {"other heads": table})
    assert tile_of(LAYER, torch.float16, CPU) == measured
    assert tile_of(LAYER, torch.float32, CPU) == table
    path.write_text("{")
    assert read_tiles(INTERPRETER) == {}
