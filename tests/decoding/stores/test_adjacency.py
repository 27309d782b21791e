import numpy as np
import pytest
from numpy.typing import NDArray

from decoding.stores.adjacency import AdjacencyTable
from decoding.stores.successor_table import NUM_SUCCESSORS


def harvest(table: AdjacencyTable, pairs: list[tuple[int, int]], first: int = 0, width: int = NUM_SUCCESSORS) -> None:
    """Teach the table that `first`, `first` + 1, … follow each (previous, token)."""
    rows = len(pairs)
    probabilities = np.linspace(0.5, 0.01, width, dtype=np.float32)
    table.harvest(
        np.array([previous for previous, _ in pairs], np.int32),
        np.array([token for _, token in pairs], np.int32),
        np.tile(np.arange(first, first + width, dtype=np.int32), (rows, 1)),
        np.tile(probabilities, (rows, 1)),
    )


def random_rows(random: np.random.Generator, rows: int) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    ids = np.argsort(random.random((rows, 50)), axis=1)[:, :NUM_SUCCESSORS].astype(np.int32)
    return ids, -np.sort(-random.random((rows, NUM_SUCCESSORS)).astype(np.float32), axis=1)


def test_bigrams_come_first_and_unigrams_are_the_fallback() -> None:
    table = AdjacencyTable(2**20)
    harvest(table, [(5, 7)], first=100)
    harvest(table, [(6, 7)], first=200)
    assert table.successors(5, 7)[0][0] == 100
    assert table.successors(6, 7)[0][0] == 200
    assert {100, 200} <= set(table.successors(99, 7)[0].tolist())  # the unigram tier averages both
    assert len(table.successors(5, 8)[0]) == 0
    assert table.lookups == (2, 1, 1)
    assert table.hit_rate == pytest.approx(0.75)
    assert (table.num_unigrams, table.num_bigrams) == (1, 2)


def test_a_row_without_a_known_previous_token_teaches_the_unigram_tier_alone() -> None:
    table = AdjacencyTable(2**20)
    harvest(table, [(-1, 7)], first=100)
    assert (table.num_unigrams, table.num_bigrams) == (1, 0)


def test_rows_of_one_key_are_averaged_and_the_ten_best_stay() -> None:
    table = AdjacencyTable(2**20)
    harvest(table, [(1, 2)], first=10, width=3)  # 10, 11, 12 with 0.5, 0.255, 0.01
    harvest(table, [(1, 2)], first=11, width=2)  # 11, 12 with 0.5, 0.01
    ids, probabilities = table.successors(1, 2)
    assert ids.tolist() == [11, 10, 12]
    assert probabilities == pytest.approx([0.3775, 0.25, 0.01], abs=1e-6)
    harvest(table, [(1, 2)], first=50, width=16)
    ids, probabilities = table.successors(1, 2)
    assert len(set(ids.tolist())) == NUM_SUCCESSORS
    assert {11, 10, 50} <= set(ids.tolist())
    assert np.all(np.diff(probabilities) <= 0)


def test_fewer_than_ten_successors_are_kept_as_given() -> None:
    table = AdjacencyTable(2**20)
    harvest(table, [(1, 2)], first=30, width=4)
    assert table.successors(1, 2)[0].tolist() == [30, 31, 32, 33]


def test_the_byte_limit_holds_under_random_load_and_the_books_balance() -> None:
    random = np.random.default_rng(1)
    max_bytes = 300_000
    table = AdjacencyTable(max_bytes)
    sizes = set()
    for _ in range(150):
        rows = int(random.integers(1, 200))
        previous = random.integers(-1, 4000, rows).astype(np.int32)
        tokens = random.integers(0, 4000, rows).astype(np.int32)
        table.harvest(previous, tokens, *random_rows(random, rows))
        table.check_integrity()
        assert table.num_bytes <= max_bytes
        assert table.num_bytes == sum(array.nbytes for array in table.arrays) - table.arrays.counters.nbytes
        sizes.add(table.num_bytes)
    assert len(sizes) > 3, "the table never grew"
    assert table.num_unigrams + table.num_bigrams > 0.8 * table.arrays.keys.size, "the table never filled"


def test_growing_keeps_entries_but_for_the_odd_full_set() -> None:
    table = AdjacencyTable(2**22)
    pairs = [(token % 37, token) for token in range(2000)]
    for start in range(0, len(pairs), 50):
        harvest(table, pairs[start : start + 50], first=start)
    known = [(token, table.successors(previous, token)[0]) for previous, token in pairs]
    assert sum(len(ids) > 0 for _, ids in known) > 0.98 * len(pairs)
    assert all(ids[0] == token // 50 * 50 for token, ids in known if len(ids) > 0)


def test_entries_in_use_survive_a_flood_of_others() -> None:
    random = np.random.default_rng(2)
    table = AdjacencyTable(200_000)
    hot = [(token, token + 1) for token in range(200)]
    harvest(table, hot, first=7)
    for _ in range(200):
        for pair in hot:
            table.successors(*pair)
        previous, tokens = random.integers(1000, 60_000, (2, 100)).astype(np.int32)
        table.harvest(previous, tokens, *random_rows(random, 100))
    assert sum(len(table.successors(*pair)[0]) > 0 for pair in hot) > 0.97 * len(hot)
    assert table.num_bigrams < 20_000, "the flood never had to evict"
