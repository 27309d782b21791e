"""The KV stores: random operations keep their invariants, and commits keep exactly the path's rows."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from decoding.cache.slab import SlabStore
from decoding.cache.slot_pool import SlotPool
from decoding.cache.store import KvHandle, KvStore, bytes_per_slot

from decoding.core.layer import LayerSpec

# Two layers of one shape and one of another, with keys wider than values.
LAYERS = [
    LayerSpec(index=0, num_query_heads=4, num_kv_heads=2, key_dim=8, value_dim=8, scaling=1.0),
    LayerSpec(index=1, num_query_heads=4, num_kv_heads=2, key_dim=8, value_dim=8, scaling=1.0),
    LayerSpec(index=2, num_query_heads=3, num_kv_heads=3, key_dim=6, value_dim=4, scaling=1.0),
]
KINDS = ["slab", "pool"]
DTYPES = [torch.float32, torch.bfloat16, torch.float64]


def make_store(kind: str, num_slots: int, dtype: torch.dtype = torch.float32) -> KvStore:
    if kind == "slab":
        return SlabStore(LAYERS, num_slots, dtype)
    return SlotPool(LAYERS, num_slots, dtype, torch.device("cpu"))


def write_rows(store: KvStore, handle: KvHandle, marks: list[int]) -> None:
    """Reserve rows and fill row i of every layer with `marks[i]`, told apart by layer, head and K or V."""
    slots = store.reserve(handle, len(marks))
    assert slots is not None
    for layer in LAYERS:
        key_HMD = torch.zeros(layer.num_kv_heads, len(marks), layer.key_dim, dtype=store.dtype)  # type: ignore[attr-defined]
        value_HMD = torch.zeros(layer.num_kv_heads, len(marks), layer.value_dim, dtype=store.dtype)  # type: ignore[attr-defined]
        for row, mark in enumerate(marks):
            key_HMD[:, row] = mark
            value_HMD[:, row] = -mark
        store.write(layer.index, key_HMD, value_HMD, torch.from_numpy(slots))


def read_rows(store: KvStore, handle: KvHandle) -> list[int]:
    """The marks of the committed rows, the same in every layer, head and column."""
    marks: list[int] | None = None
    for layer in LAYERS:
        key_HTD, value_HTD = store.gather(layer.index, store.rows(handle, handle.length))
        found = key_HTD[0, :, 0].tolist()
        expected = torch.tensor(found, dtype=key_HTD.dtype)[None, :, None]
        assert torch.equal(key_HTD, expected.expand_as(key_HTD))
        assert torch.equal(value_HTD, -expected.expand_as(value_HTD))
        assert marks is None or marks == found
        marks = found
    assert marks is not None
    return marks


def path(*nodes: int) -> np.ndarray:
    return np.array(nodes, np.int32)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kept", [[], [0], [0, 1, 2], [0, 2, 4], [1, 3], [0, 1, 2, 3, 4]])
def test_commit_keeps_exactly_the_paths_rows(kind: str, dtype: torch.dtype, kept: list[int]) -> None:
    store = make_store(kind, 64, dtype)
    handle, neighbour = store.allocate(16), store.allocate(16)
    assert handle is not None and neighbour is not None  # noqa: PT018
    write_rows(store, neighbour, [7, 8])
    store.commit(neighbour, path(0, 1))
    write_rows(store, handle, [1, 2, 3])
    store.commit(handle, path(0, 1, 2))
    write_rows(store, handle, [10, 11, 12, 13, 14])
    store.commit(handle, path(*kept))
    store.check_integrity()
    assert read_rows(store, handle) == [1, 2, 3, *(10 + node for node in kept)]
    assert read_rows(store, neighbour) == [7, 8]


@pytest.mark.parametrize("kind", KINDS)
def test_a_fork_shares_no_fate_with_its_source(kind: str) -> None:
    store = make_store(kind, 64)
    source = store.allocate(16)
    assert source is not None
    write_rows(store, source, [1, 2, 3, 4])
    store.commit(source, path(0, 1, 2, 3))
    copy = store.fork(source, 3, 20)
    assert copy is not None
    write_rows(store, copy, [30])
    write_rows(store, source, [50])
    store.commit(copy, path(0))
    store.commit(source, path(0))
    store.check_integrity()
    assert read_rows(store, copy) == [1, 2, 3, 30]
    store.free(source)
    store.check_integrity()
    assert read_rows(store, copy) == [1, 2, 3, 30]


@pytest.mark.parametrize("kind", KINDS)
def test_no_room_is_none_and_changes_nothing(kind: str) -> None:
    store = make_store(kind, 8)
    assert store.allocate(9) is None
    handle = store.allocate(8)
    assert handle is not None
    write_rows(store, handle, [1, 2, 3, 4, 5])
    store.commit(handle, path(0, 1, 2, 3, 4))
    assert store.reserve(handle, 4) is None
    store.check_integrity()
    assert read_rows(store, handle) == [1, 2, 3, 4, 5]
    assert store.reserve(handle, 3) is not None
    assert store.used == 8
    store.free(handle)
    assert store.used == 0


def test_a_pool_admits_no_more_than_it_can_keep_its_promises_to() -> None:
    pool = make_store("pool", 8)
    first = pool.allocate(6)
    assert first is not None
    assert pool.allocate(3) is None, "the first may still grow to 6"
    second = pool.allocate(2)
    assert second is not None
    assert pool.reserve(first, 6) is not None
    assert pool.reserve(second, 2) is not None
    assert pool.reserve(first, 5) is not None, "a new reservation replaces the old one"
    pool.check_integrity()
    pool.free(first)
    assert pool.allocate(6) is not None


def test_a_slab_coalesces_what_is_freed() -> None:
    slab = make_store("slab", 30)
    handles = [slab.allocate(10) for _ in range(3)]
    assert slab.allocate(1) is None
    for handle in (handles[0], handles[2], handles[1]):
        assert handle is not None
        slab.free(handle)
        slab.check_integrity()
    assert slab.allocate(30) is not None


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(4))
def test_random_operations_keep_integrity_and_contents(kind: str, seed: int) -> None:
    generator = np.random.default_rng(seed)
    store = make_store(kind, 120)
    expected: dict[KvHandle, list[int]] = {}
    refusals = 0
    for move in range(150):
        action = generator.choice(["allocate", "step", "step", "step", "fork", "free"])
        handles = list(expected)
        handle = handles[generator.integers(len(handles))] if handles else None
        if action == "allocate" or handle is None:
            fresh = store.allocate(int(generator.integers(5, 40)))
            refusals += fresh is None
            if fresh is not None:
                expected[fresh] = []
        elif action == "fork":
            length = int(generator.integers(handle.length + 1))
            fresh = store.fork(handle, length)
            refusals += fresh is None
            if fresh is not None:
                expected[fresh] = expected[handle][:length]
        elif action == "free":
            store.free(handle)
            del expected[handle]
        else:
            num_rows = int(generator.integers(1, 8))
            if store.reserve(handle, num_rows) is None:
                refusals += 1
            else:
                write_rows(store, handle, [move % 100 + row for row in range(num_rows)])
                kept = np.flatnonzero(generator.random(num_rows) < 0.6).astype(np.int32)
                store.commit(handle, kept)
                expected[handle] += [move % 100 + node for node in kept.tolist()]
        store.check_integrity()
        for live, marks in expected.items():
            assert live.length == len(marks)
            if marks:
                assert read_rows(store, live) == marks
    assert refusals > 0, "the test never met a full store"


def test_bytes_per_slot_counts_every_layer() -> None:
    assert bytes_per_slot(LAYERS, torch.bfloat16) == 2 * (2 * 2 * 16 + 3 * 10)
