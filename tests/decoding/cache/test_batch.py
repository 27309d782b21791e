"""Packing: positions are prefix plus depth, tables line up, ancestor bits are the tree."""

from __future__ import annotations

import numpy as np
import torch
from decoding.cache.slab import SlabStore
from decoding.cache.store import KvHandle

from decoding.cache.batch import Segment, ancestor_bits, pack
from decoding.core.layer import LayerSpec
from tests.trees import random_parents

LAYER = LayerSpec(index=0, num_query_heads=1, num_kv_heads=1, key_dim=2, value_dim=2, scaling=1.0)


def store_with(*lengths: int) -> tuple[SlabStore, list[KvHandle]]:
    store = SlabStore([LAYER], 4096, torch.float32)
    handles = []
    for length in lengths:
        handle = store.allocate(length + 300)
        assert handle is not None
        if length:
            store.reserve(handle, length)
            store.commit(handle, np.arange(length, dtype=np.int32))
        handles.append(handle)
    return store, handles


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
    slots = np.concatenate([handle.reserved for handle in (first, second, third)])
    assert np.array_equal(batch.write_slots_M, slots)


def test_a_tree_that_is_a_chain_is_seen_as_one() -> None:
    store, (handle,) = store_with(3)
    batch = pack([Segment(handle, ints(1, 2, 3), ints(-1, 0, 1))], store)
    assert batch.is_chain.all()


def test_packing_leaves_its_inputs_alone() -> None:
    store, (handle,) = store_with(3)
    tokens, parents = ints(5, 6, 7), ints(-1, 0, 0)
    pack([Segment(handle, tokens), Segment(store_with(0)[1][0], tokens, parents)][:1], store)
    pack([Segment(handle, tokens, parents)], store)
    assert tokens.tolist() == [5, 6, 7]
    assert parents.tolist() == [-1, 0, 0]


def test_a_long_prompt_chunk_needs_no_square_memory() -> None:
    store = SlabStore([LAYER], 300_000, torch.float32)
    handle = store.allocate(300_000)
    assert handle is not None
    batch = pack([Segment(handle, np.zeros(200_000, np.int32), None, "last")], store)
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
