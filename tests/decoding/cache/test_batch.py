"""Packing: positions are prefix plus depth, tables line up, ancestor bits are the tree."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import torch

from decoding.cache.batch import Segment, StepBatch, ancestor_bits, pack
from decoding.cache.block_pool import BLOCK_LEN
from decoding.cache.kv_cache import KvCache
from decoding.cache.kv_store import KvRows, KvStore, slots_of
from decoding.core.layer import LayerSpec
from decoding.engine.ahead.batch import following
from tests.trees import random_parents

LAYER = LayerSpec(index=0, num_query_heads=1, num_kv_heads=1, key_dim=2, value_dim=2, scaling=1.0)


def store_with(*lengths: int) -> tuple[KvStore, list[KvRows]]:
    cache = KvCache(KvStore([LAYER], 4096 // BLOCK_LEN, torch.float32, torch.device("cpu")))
    rows = [cache.new_rows(length + 300) for length in lengths]
    for each, length in zip(rows, lengths, strict=True):
        each.length = length
    return cache.store, rows


def ints(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int32)


def test_rows_of_several_requests_lie_side_by_side() -> None:
    store, (first, second, third) = store_with(10, 0, 5)
    tree = Segment(first, ints(7, 8, 9, 6), ints(-1, 0, 0, 1))
    prompt = Segment(second, ints(1, 2, 3), None, "last")
    silent = Segment(third, ints(4, 5), None, "none")
    batch = pack([tree, prompt, silent], store)
    assert batch.ids_M.tolist() == [7, 8, 9, 6, 1, 2, 3, 4, 5]
    assert batch.positions_M.tolist() == [10, 11, 11, 12, 0, 1, 2, 5, 6]
    assert batch.parents_P.tolist() == [-1, 0, 0, 1, -1, 0, 1, -1, 0]
    assert batch.offsets.tolist() == [0, 4, 7, 9]
    assert batch.prefix_lens.tolist() == [10, 0, 5]
    assert batch.is_chain.tolist() == [False, True, True]
    assert batch.logit_rows_R.tolist() == [0, 1, 2, 3, 6]
    assert batch.logit_offsets.tolist() == [0, 4, 5, 5]
    written = ((first, 10, 14), (second, 0, 3), (third, 5, 7))
    slots = [slots_of(rows.table.blocks, np.arange(start, end)) for rows, start, end in written]
    assert np.array_equal(batch.write_slots_M, np.concatenate(slots))
    assert batch.blocks(1).tolist() == second.table.blocks.tolist()


def test_a_tree_that_is_a_chain_is_seen_as_one() -> None:
    store, (rows,) = store_with(3)
    batch = pack([Segment(rows, ints(1, 2, 3), ints(-1, 0, 1))], store)
    assert batch.is_chain.all()


def test_the_step_that_follows_is_what_would_be_packed() -> None:
    """Of some of its segments, in any order, with blocks that were added meanwhile."""
    lengths = 10, 0, 31, 5, 14
    store, sequences = store_with(*lengths)
    for rows in sequences:
        while rows.table.num_blocks * BLOCK_LEN > rows.length + BLOCK_LEN:
            rows.table.pop()
    segments = [Segment(rows, ints(7), ints(-1)) for rows in sequences]
    segments[1] = Segment(sequences[1], ints(1, 2, 3), None, "last")  # a prompt, whose last token is the root
    batch = pack(segments, store)
    added = ints(-1, 200, -1, 201)
    places = np.array([0, 2, 1, 4])
    for segment, rows in zip(segments, sequences, strict=True):
        rows.length += len(segment.tokens)
    for place, block in zip(places, added, strict=True):
        if block >= 0:
            sequences[place].table.append(int(block))
    drawn_B = torch.tensor([40, 41, 42, 43, -1], dtype=torch.int32)
    batch = following(batch, places, added, drawn_B)
    expected = pack([Segment(sequences[place], ints(int(place)), ints(-1)) for place in places], store)
    for field in fields(StepBatch):
        ours, theirs = getattr(batch, field.name), getattr(expected, field.name)
        if isinstance(theirs, np.ndarray):
            assert ours.dtype == theirs.dtype, field.name
            assert ours.tolist() == theirs.tolist(), field.name
    assert batch.tokens_at(torch.from_numpy(batch.ids_M)).tolist() == [40, 42, 41, 0], "any token where none was drawn"


def test_packing_leaves_its_inputs_alone() -> None:
    store, (rows,) = store_with(3)
    tokens, parents = ints(5, 6, 7), ints(-1, 0, 0)
    pack([Segment(rows, tokens), Segment(store_with(0)[1][0], tokens, parents)][:1], store)
    pack([Segment(rows, tokens, parents)], store)
    assert tokens.tolist() == [5, 6, 7]
    assert parents.tolist() == [-1, 0, 0]


def test_a_long_prompt_chunk_needs_no_square_memory() -> None:
    cache = KvCache(KvStore([LAYER], 300_000 // BLOCK_LEN, torch.float32, torch.device("cpu")))
    rows = cache.new_rows(200_000)
    batch = pack([Segment(rows, np.zeros(200_000, np.int32), None, "last")], cache.store)
    assert batch.positions_M[-1] == 199_999


def test_ancestor_bits_are_the_walk_to_the_root() -> None:
    generator = np.random.default_rng(0)
    for num_nodes in (1, 2, 63, 64, 65, 130):
        parents = random_parents(num_nodes, generator)
        bits = ancestor_bits(parents)
        assert bits.shape == (num_nodes, -(-num_nodes // 64))
        for node in range(num_nodes):
            walk, current = set(), node
            while current >= 0:
                walk.add(current)
                current = int(parents[current])
            marked = {other for other in range(num_nodes) if int(bits[node, other // 64]) >> (other % 64) & 1}
            assert marked == walk
