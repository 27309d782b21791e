"""The KV store: a commit keeps exactly the path's rows, wherever the table's blocks lie."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from decoding.cache.block_pool import BLOCK_LEN
from decoding.cache.kv_cache import KvCache
from decoding.cache.kv_format import dtype_of, pack_rows, unpack_rows
from decoding.cache.kv_store import KvRows, KvStore, bytes_per_slot, slots_of
from decoding.core.layer import LayerSpec
from decoding.kernels.cpu.attention.formats import FORMATS

# Two layers of one shape and one of another, with keys wider than values.
LAYERS = [
    LayerSpec(index=0, num_query_heads=4, num_kv_heads=2, key_dim=8, value_dim=8, scaling=1.0),
    LayerSpec(index=1, num_query_heads=4, num_kv_heads=2, key_dim=8, value_dim=8, scaling=1.0),
    LayerSpec(index=2, num_query_heads=3, num_kv_heads=3, key_dim=6, value_dim=4, scaling=1.0),
]
DTYPES = [torch.float32, torch.bfloat16, torch.float64]


def new_cache(num_tokens: int, dtype: torch.dtype = torch.float32) -> KvCache:
    return KvCache(KvStore(LAYERS, num_tokens // BLOCK_LEN, dtype, torch.device("cpu")))


def write_rows(store: KvStore, rows: KvRows, marks: list[int]) -> None:
    """Fill the rows after the committed ones: row i of every layer with `marks[i]`, told apart by K or V."""
    slots_M = torch.from_numpy(slots_of(rows.table.blocks, np.arange(rows.length, rows.length + len(marks))))
    marks_M = torch.tensor(marks, dtype=store.dtype)[None, :, None]
    for layer in LAYERS:
        key_HMD = marks_M.expand(layer.num_kv_heads, -1, layer.key_dim)
        value_HMV = -marks_M.expand(layer.num_kv_heads, -1, layer.value_dim)
        store.write(layer.index, key_HMD, value_HMV, slots_M)


def read_rows(store: KvStore, rows: KvRows) -> list[int]:
    """The marks of the committed rows, the same in every layer, head and column."""
    marks: list[int] | None = None
    for layer in LAYERS:
        blocks = torch.from_numpy(rows.table.blocks.astype(np.int64))
        key_HTD, value_HTV = store.gather(layer.index, blocks, rows.length)
        found = key_HTD[0, :, 0].tolist()
        expected = torch.tensor(found, dtype=key_HTD.dtype)[None, :, None]
        assert torch.equal(key_HTD, expected.expand_as(key_HTD))
        assert torch.equal(value_HTV, -expected.expand_as(value_HTV))
        assert marks is None or marks == found
        marks = found
    assert marks is not None
    return marks


def path(*nodes: int) -> np.ndarray:
    return np.array(nodes, np.int32)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("prefix_len", [0, 3, 14, 15, 16])
@pytest.mark.parametrize("kept", [[], [0], [0, 1, 2], [0, 2, 4], [1, 3], [0, 1, 2, 3, 4], [0, 1, 3, 19]])
def test_a_commit_keeps_exactly_the_paths_rows(dtype: torch.dtype, prefix_len: int, kept: list[int]) -> None:
    cache = new_cache(10 * BLOCK_LEN, dtype)
    store, ours, others = cache.store, cache.new_rows(BLOCK_LEN), cache.new_rows(BLOCK_LEN)
    assert cache.pool.resize(ours.table, 3 * BLOCK_LEN), "blocks that do not follow each other"
    write_rows(store, others, [7, 8])
    store.commit(others, path(0, 1))
    prefix = list(range(1, prefix_len + 1))
    write_rows(store, ours, prefix)
    store.commit(ours, np.arange(prefix_len, dtype=np.int32))
    write_rows(store, ours, list(range(100, 120)))
    store.commit(ours, path(*kept))
    assert read_rows(store, ours) == [*prefix, *(100 + node for node in kept)]
    assert read_rows(store, others) == [7, 8]


def test_a_fork_shares_no_fate_with_its_source() -> None:
    cache = new_cache(8 * BLOCK_LEN)
    store, source = cache.store, cache.new_rows(40)
    marks = list(range(20))
    write_rows(store, source, marks)
    store.commit(source, np.arange(20, dtype=np.int32))
    copy = cache.fork(source, 40)
    assert copy.table.blocks[0] == source.table.blocks[0], "the full block is shared"
    write_rows(store, copy, [30])
    write_rows(store, source, [50])
    store.commit(copy, path(0))
    store.commit(source, path(0))
    assert read_rows(store, copy) == [*marks, 30]
    assert read_rows(store, source) == [*marks, 50]
    cache.pool.release(source.table)
    cache.pool.check_integrity()
    assert read_rows(store, copy) == [*marks, 30]


@pytest.mark.parametrize("name", FORMATS)
def test_rows_of_every_format_are_moved_and_copied_whole(name: str) -> None:
    cache = new_cache(8 * BLOCK_LEN, dtype_of(name))
    store, rows = cache.store, cache.new_rows(40)
    slots_M = torch.from_numpy(slots_of(rows.table.blocks, np.arange(40)))
    generator, given = torch.Generator().manual_seed(1), []
    for layer in LAYERS:
        shapes = [(layer.num_kv_heads, 40, width) for width in (layer.key_dim, layer.value_dim)]
        given.append([torch.randn(shape, generator=generator) for shape in shapes])
        store.write(layer.index, *given[-1], slots_M)
    store.commit(rows, path(0, 3, 17, 39))
    source, target = int(rows.table.blocks[0]), int(cache.new_rows(16).table.blocks[0])
    store.copy_block(source, target)
    content = np.empty(store.block_bytes, np.uint8)
    store.read_block(target, content)
    store.clear()
    store.write_block(source, content)
    for layer, expected in zip(LAYERS, given, strict=True):
        for found, numbers in zip(store.gather(layer.index, torch.tensor([source]), 4), expected, strict=True):
            kept = numbers[:, [0, 3, 17, 39]]
            assert torch.equal(found, unpack_rows(pack_rows(kept, store.dtype), kept.shape[-1]))
            torch.testing.assert_close(found.float(), kept, rtol=0.07, atol=0.02)


def test_bytes_per_slot_counts_every_layer() -> None:
    assert bytes_per_slot(LAYERS, torch.bfloat16) == 2 * (2 * 2 * 16 + 3 * 10)
    assert bytes_per_slot(LAYERS, torch.float8_e4m3fn) == 2 * 2 * 16 + 3 * 10
    assert bytes_per_slot(LAYERS, torch.int8) == 2 * 2 * (16 + 2 * 2) + 3 * (10 + 2 * 2)


def random_paths(rng: np.random.Generator, num_sequences: int) -> list[np.ndarray]:
    """Of trees of up to 40 nodes, some of which move nothing."""
    sizes = [int(rng.integers(1, 12)) for _ in range(num_sequences)]
    return [path(0, *sorted(rng.choice(np.arange(1, 40), size - 1, replace=False))) for size in sizes]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("mover", ["gathered", "triton"])
def test_moves_of_a_device_are_made_together_and_are_those_of_the_cpu(mover: str, dtype: torch.dtype) -> None:
    rng, found = np.random.default_rng(0), []
    paths = random_paths(rng, 9)
    for is_device in (False, True):
        cache = new_cache(9 * 64, dtype)
        store, all_rows = cache.store, [cache.new_rows(40 + 17) for _ in paths]
        for place, rows in enumerate(all_rows):
            write_rows(store, rows, list(range(100 * place, 100 * place + 17)))
            store.commit(rows, np.arange(17, dtype=np.int32))
            write_rows(store, rows, list(range(100 * place + 17, 100 * place + 57)))
        if is_device:
            store._arrays = []
            if mover == "triton":
                store._move_all = pytest.importorskip("decoding.kernels.gpu.moves").move_rows
        for rows, kept in zip(all_rows, paths, strict=True):
            store.commit(rows, kept)
        store.settle()
        found.append([read_rows(store, rows) for rows in all_rows])
    assert found[0] == found[1]


def test_a_steps_commits_are_one_operation_however_many_sequences_there_are() -> None:
    store = KvStore(LAYERS[:2], 400, torch.bfloat16, torch.device("meta"))
    calls: list[tuple[int, int]] = []
    store._move_all = lambda _keys, _values, words, num_sequences: calls.append((len(words), num_sequences))
    cache = KvCache(store)
    for _ in range(2):
        for kept in random_paths(np.random.default_rng(1), 32):
            store.commit(cache.new_rows(64), kept)
        assert not calls, "nothing is launched before the next forward"
        store.settle()
        assert len(calls) == 1
        assert calls.pop()[1] > 20
        store.settle()
        assert not calls


def test_a_copied_block_has_what_was_to_be_moved_there() -> None:
    cache = new_cache(256)
    store, rows = cache.store, cache.new_rows(20)
    store._arrays = []
    write_rows(store, rows, list(range(20)))
    store.commit(rows, path(0, 2, 4))
    assert read_rows(store, cache.fork(rows, 20)) == [0, 2, 4]
