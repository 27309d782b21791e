"""The table under both stores: keys find what they claimed, tiers are counted, growing loses nothing."""

from __future__ import annotations

import numpy as np

from decoding.stores.successor_table import NO_TOKEN, SuccessorTable, find_or_claim, key_of, look_up, mix
from tests.decoding.stores.tables import successors_of


def keys(count: int, tier: int, first: int = 0) -> list[np.uint64]:
    mixed = [np.uint64(mix(np.uint64(value))) for value in range(first, first + count)]  # compiled code gives ints
    return [np.uint64(key_of(value, tier)) for value in mixed]


def test_a_key_carries_its_tier_and_is_never_the_mark_of_a_free_place() -> None:
    for tier in range(4):
        made = np.array(keys(2000, tier))
        assert np.all(made & np.uint64(3) == tier)
        assert len(np.unique(made)) == len(made)
    assert mix(np.uint64(0)) == 0
    assert keys(1, 0) == [4]


def test_a_claimed_key_is_found_again_and_tiers_count_entries() -> None:
    table = SuccessorTable(2**16, first_sets=4)
    for tier, count in enumerate((1, 2, 3, 4)):
        for key in keys(count, tier):
            entry, is_new = find_or_claim(table.arrays, key)
            assert is_new
            assert find_or_claim(table.arrays, key) == (entry, False)
            assert look_up(table.arrays, key) == entry
        for key in keys(2, tier, first=100):
            assert look_up(table.arrays, key) == -1
    assert table.num_entries == (1, 2, 3, 4)
    table.check_integrity()


def test_growing_moves_entries_with_all_they_hold() -> None:
    table = SuccessorTable(2**20, first_sets=4)
    for number, key in enumerate(keys(12, 2)):
        entry, _ = find_or_claim(table.arrays, key)
        table.arrays.ids[entry, :2] = number, number + 1
        table.arrays.probabilities[entry, :2] = 0.5, 0.25
        table.arrays.seen[entry] = number
    size = table.num_bytes
    table.reserve(500)
    assert table.num_bytes > 8 * size
    assert table.num_bytes == sum(array.nbytes for array in table.arrays) - table.arrays.counters.nbytes
    for number, key in enumerate(keys(12, 2)):
        entry = look_up(table.arrays, key)
        ids, probabilities = successors_of(table, entry)
        assert (ids.tolist(), probabilities.tolist()) == ([number, number + 1], [0.5, 0.25])
        assert table.arrays.seen[entry] == number
    assert len(successors_of(table, -1)[0]) == 0
    table.check_integrity()


def test_a_full_set_gives_up_the_entry_that_was_useful_longest_ago() -> None:
    table = SuccessorTable(1, first_sets=1)  # one set of eight
    first = keys(8, 0)
    for key in first:
        find_or_claim(table.arrays, key)
    for key in first[:3] + first[4:]:
        look_up(table.arrays, key)
    find_or_claim(table.arrays, keys(1, 1, first=50)[0])
    assert [look_up(table.arrays, key) >= 0 for key in first] == [True] * 3 + [False] + [True] * 4
    assert table.num_entries == (7, 1, 0, 0)
    assert np.all(table.arrays.ids == NO_TOKEN)
    table.check_integrity()


def test_the_books_balance_under_random_use_of_every_tier() -> None:
    random = np.random.default_rng(4)
    table = SuccessorTable(40_000, first_sets=2)
    for _ in range(100):
        table.reserve(20)
        for value, tier in zip(random.zipf(1.2, 20) % 2**30, random.integers(0, 4, 20), strict=True):
            key = keys(1, int(tier), first=int(value))[0]
            was_there = look_up(table.arrays, key)
            entry, is_new = find_or_claim(table.arrays, key)
            assert (entry == was_there) is not is_new
        table.check_integrity()
    assert sum(table.num_entries) > 0.9 * table.arrays.keys.size, "the table never filled"
