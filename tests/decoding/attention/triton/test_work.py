"""Every (row, head) pair meets each key of its path once, in order; sizes are found, kept and read again."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch

from decoding.attention.triton import tiles, work
from decoding.attention.triton.tiles import Tile, default_tile, head_name, keep_tiles, read_tiles, tile_of
from decoding.attention.triton.work import ALL_PARTIALS, MOST_OF_PROMPT, Kind, lists_of, most_work, share_out
from decoding.cache.batch import Segment, StepBatch, pack
from decoding.cache.kv_cache import KvCache
from decoding.cache.kv_store import KvStore
from decoding.core.layer import LayerSpec
from decoding.core.tree import IntArray
from decoding.kernels.gpu.card import INTERPRETER
from decoding.kernels.gpu.work_list import (
    BASE,
    END,
    FIRST_PAIR,
    FIRST_POSITION,
    FIRST_ROW,
    ITEM_WORDS,
    LENGTH,
    MOST_RANGES,
    NUM_ROWS,
    PARTIAL,
    PARTIALS_EACH,
    PATH,
    PLACE_WORDS,
    ROW_WORDS,
    SPLIT,
    START,
    TABLE,
    place_of,
    start_of,
)
from tests.trees import random_parents

CPU = torch.device("cpu")
LAYER = LayerSpec(index=0, num_query_heads=6, num_kv_heads=2, key_dim=2, value_dim=2, scaling=1.0)
KINDS = [Kind(3, 2, 64, 16, many=48), Kind(1, 6, 128, 64)]


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


class Listed(NamedTuple):
    """What a step's words say. rows: of each row of the step its `ROW_WORDS`. items: of each list."""

    rows: list[list[int]]
    items: list[list[list[int]]]


def listed_in(words: IntArray, num_lists: int) -> Listed:
    count = int(words[2 * num_lists])
    rows = words[2 * num_lists + 1 :][: ROW_WORDS * count].reshape(-1, ROW_WORDS).tolist()
    headers = words[: 2 * num_lists].reshape(-1, 2).tolist()
    items = [words[first : first + ITEM_WORDS * size].reshape(-1, ITEM_WORDS).tolist() for size, first in headers]
    return Listed(rows, items)


def lists_of_kind(kind: Kind) -> list[int]:
    return [place for place, (each, _) in enumerate(lists_of(KINDS)) if each == kind]


@pytest.mark.parametrize("few_jobs", [0, 10**6])
@pytest.mark.parametrize("seed", range(3))
def test_each_row_meets_the_key_of_each_of_its_positions_once(
    monkeypatch: pytest.MonkeyPatch, seed: int, few_jobs: int
) -> None:
    """Whether one program computes a range or several do, in whichever tile: a row's partial sums are merged in
    an order in which they are of all its keys, in the order of their positions."""
    monkeypatch.setattr(work, "FEW_JOBS", few_jobs)
    monkeypatch.setattr(work, "MOST_PARTIALS", 10**6)
    batch = tree_batch(np.random.default_rng(seed))
    found = share_out(batch, KINDS)
    listed = listed_in(found.words, len(lists_of(KINDS)))
    assert len(listed.rows) == batch.num_tokens
    places_seen = set()
    for kind in KINDS:
        met: dict[tuple[int, int], dict[int, list[tuple[int, int]]]] = defaultdict(lambda: defaultdict(list))
        for place in lists_of_kind(kind):
            for item in listed.items[place]:
                for row, head, partial, keys in keys_of(batch, kind, lists_of(KINDS)[place][1], item, found.words):
                    assert partial not in met[row, head]
                    met[row, head][partial] = keys
                    places_seen.add(partial)
        assert len(met) == batch.num_tokens * kind.group
        for (row, _), partials in met.items():
            assert merged(listed.rows[row], partials, found.words) == list(enumerate(path_keys(batch, row))), row
    assert max(places_seen) < max(found.num_partials, 1)


def merged(record: list[int], partials: dict[int, list[tuple[int, int]]], words: IntArray) -> list[tuple[int, int]]:
    """The positions and keys of a row's partial sums as they are merged; of its only one where there is nothing to."""
    num_ranges, num_parts, first, places, position = record
    if num_ranges == 0:
        (keys,) = partials.values()
        return keys
    found = []
    for slot, begin in words[places:][: PLACE_WORDS * num_ranges * num_parts].reshape(-1, PLACE_WORDS).tolist():
        if begin <= position:
            found += partials[first + slot]
    return found


def test_prompts_of_many_tokens_have_coarser_ranges() -> None:
    for num_rows, is_coarser in ((64, False), (700, True)):
        found = share_out(batch_of((60_000, num_rows)), KINDS)
        num_ranges, num_parts, *_ = listed_in(found.words, len(lists_of(KINDS))).rows[0]
        assert num_parts == 1
        assert (num_ranges < place_of(60_000 + num_rows - 1) + 1) == is_coarser
        assert found.num_partials == num_rows * num_ranges <= max(64 * MOST_RANGES, MOST_OF_PROMPT + num_rows)


def test_a_prompt_from_the_start_has_no_partial_sums_and_is_in_large_tiles() -> None:
    found = share_out(batch_of((0, 2048), (500, 1)), KINDS)
    listed = listed_in(found.words, len(lists_of(KINDS)))
    assert [row[0] for row in listed.rows[:2048]] == [0] * 2048
    assert len(listed.items[lists_of(KINDS).index((KINDS[0], 48))]) == 2048 * 3 // 48


def test_keys_are_read_once_for_all_heads_that_share_them_and_all_rows_of_a_tree() -> None:
    """But for the block in which a tree forks, which each of its two paths reads."""
    kinds = [Kind(group=4, heads=8, keys=64, pairs=64, many=128)]
    for batch, least, most in (
        (batch_of(*[(1024, 1)] * 32), 32 * 1025, 32 * 1025),
        (batch_of(*[(4096, 16)] * 32), 32 * 4112, 32 * 4112),
        (tree_batch_of(32, 4100, 16), 32 * 4116, 32 * (4116 + 2 * 64)),
        (batch_of((0, 2048)), 32 * sum(range(1, 65)), 32 * sum(range(1, 65))),  # for each 128 pairs, which are 32 rows
    ):
        found = listed_in(share_out(batch, kinds).words, len(lists_of(kinds)))
        assert least <= sum(item[END] - item[START] for items in found.items for item in items) <= most


def tree_batch_of(count: int, prefix: int, size: int) -> StepBatch:
    """Trees of two paths each, which fork at the root."""
    cache = KvCache(KvStore([LAYER], 70_000, torch.float32, CPU))
    segments = []
    for _ in range(count):
        rows = cache.new_rows(prefix + size)
        rows.length = prefix
        parents = np.maximum(np.arange(size) - 2, -1).astype(np.int32)
        parents[1] = 0
        segments.append(Segment(rows, np.zeros(size, np.int32), parents))
    return pack(segments, cache.store)


def test_where_prompts_are_to_be_exact_they_are_cut_where_a_single_token_is() -> None:
    """At the price of partial sums of all of their tokens, which there is room for."""
    batch = batch_of((60_000, 700))
    found, room = share_out(batch, KINDS, ALL_PARTIALS), most_work(1024, 60_700, KINDS, ALL_PARTIALS)
    num_ranges, num_parts, *_ = listed_in(found.words, len(lists_of(KINDS))).rows[0]
    assert (num_ranges, num_parts) == (place_of(60_699) + 1, 1)
    assert found.num_partials == 700 * num_ranges <= room.partials
    assert len(found.words) <= room.words


def test_plain_sequences_have_a_quarter_of_the_partial_sums_of_ranges_of_128() -> None:
    """A lone row is divided by blocks of keys instead."""
    kinds = [Kind(group=4, heads=8, keys=64, pairs=64, many=128)]
    assert share_out(batch_of(*[(1024, 1)] * 32), kinds).num_partials == 3 * 32
    assert share_out(batch_of((1023, 1)), kinds).num_partials == 1024 // 64


def keys_of(
    batch: StepBatch, kind: Kind, pairs: int, item: list[int], words: IntArray
) -> Iterator[tuple[int, int, int, list[tuple[int, int]]]]:
    """What the pairs of an item meet: row of the step, head of its group, partial sum, and positions and keys, counted
    within the segment."""
    first_row, path, base = item[FIRST_ROW], item[PATH], item[BASE]
    segment = int(np.searchsorted(batch.offsets, first_row, side="right")) - 1
    assert item[TABLE] == batch.table_offsets[segment] - batch.table_offsets[-1]
    rows, nodes = list(range(item[NUM_ROWS])), np.empty(0, np.int32)
    if path >= 0:
        assert words[path : path + 2].tolist() == [item[NUM_ROWS], base]
        rows, nodes = words[path + 2 :][: len(rows)].tolist(), words[path + 2 + len(rows) :]
    for place in range(item[FIRST_PAIR], min(item[FIRST_PAIR] + pairs, len(rows) * kind.group)):
        row = rows[place // kind.group]
        own = int(batch.positions_M[first_row + row])
        assert own >= item[FIRST_POSITION]
        keys = []
        for position in range(item[START], min(item[END], own + 1)):
            key = position if position < base else int(item[LENGTH] + nodes[position - base])
            keys.append((position, key))
        yield first_row + row, place % kind.group, item[PARTIAL] + row * item[PARTIALS_EACH], keys


def path_keys(batch: StepBatch, row: int) -> list[int]:
    """The keys that a row of the step sees, in order of their positions."""
    segment = int(np.searchsorted(batch.offsets, row, side="right")) - 1
    first, prefix = int(batch.tree_offsets[segment]), int(batch.prefix_lens[segment])
    node, path = int(batch.num_written[segment]) + row - int(batch.offsets[segment]), []
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
        found, room = share_out(batch_of(*shapes), KINDS), most_work(num_rows, max(map(sum, shapes)), KINDS)
        assert len(found.words) <= room.words, shapes
        assert found.num_partials <= room.partials, shapes
    found, room = share_out(tree_batch(np.random.default_rng(0)), KINDS), most_work(1024, 8200, KINDS)
    assert len(found.words) <= room.words
    assert found.num_partials <= room.partials


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
