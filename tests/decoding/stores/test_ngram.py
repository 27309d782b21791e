"""The n-gram store averages what it sees, stays within its bytes and keeps what is used."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from decoding.core.top_tokens import TopTokens
from decoding.stores.ngram import LONGEST_NGRAM, NgramStore, find_successors
from decoding.stores.successor_table import NO_TOKEN, NUM_SUCCESSORS
from tests.decoding.stores.tables import successors, successors_of


def context_of(*tokens: int) -> NDArray[np.int32]:
    return np.array([NO_TOKEN] * (LONGEST_NGRAM - len(tokens)) + list(tokens), np.int32)


def harvest(store: NgramStore, contexts: list[NDArray[np.int32]], laws: list[dict[int, float]]) -> None:
    """Teach the store one law per context; ids with weight zero pad a law to the widest."""
    width = max(map(len, laws))
    ids = np.zeros((len(laws), width), np.int32)
    probabilities = np.zeros((len(laws), width), np.float32)
    for row, law in enumerate(laws):
        ranked = sorted(law.items(), key=lambda item: -item[1])
        ids[row, : len(law)] = [token for token, _ in ranked]
        probabilities[row, : len(law)] = [value for _, value in ranked]
    store.harvest(np.stack(contexts), ids, probabilities)


def random_rows(random: np.random.Generator, rows: int, vocab: int) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    ids = np.argsort(random.random((rows, vocab)), axis=1)[:, :NUM_SUCCESSORS].astype(np.int32)
    weights = -np.sort(-random.random((rows, NUM_SUCCESSORS)), axis=1)
    return ids, (weights / weights.sum(axis=1, keepdims=True) * 0.95).astype(np.float32)


def test_the_longest_known_ngram_answers() -> None:
    store = NgramStore(2**20)
    harvest(store, [context_of(1, 2, 3, 4)], [{100: 0.9}])
    harvest(store, [context_of(9, 2, 3, 4)], [{200: 0.9}])
    ids, probabilities, ngram = successors(store, context_of(1, 2, 3, 4))
    assert (ids.tolist(), ngram) == ([100], 4)
    assert probabilities[0] == pytest.approx(0.9)
    ids, probabilities, ngram = successors(store, context_of(5, 2, 3, 4))  # 2, 3, 4 was seen twice
    assert (sorted(ids.tolist()), ngram) == ([100, 200], 3)
    assert probabilities.tolist() == pytest.approx([0.45, 0.45])
    assert successors(store, context_of(7, 7, 7, 4))[2] == 1
    assert successors(store, context_of(4, 3, 2, 1))[2] == 0
    assert successors(store, context_of(4))[2] == 1
    assert store.num_entries == (1, 1, 1, 2)


def test_the_beginning_of_a_text_teaches_the_ngrams_it_has() -> None:
    store = NgramStore(2**20)
    harvest(store, [context_of(5, 6)], [{1: 1.0}])
    assert store.num_entries == (1, 1, 0, 0)


def test_nothing_is_learnt_across_what_is_no_token() -> None:
    """Rows of pictures have negative numbers in a prompt."""
    store, tokens = NgramStore(2**20), np.array([1, 2, -7, -(2**31), 3, 4], np.int32)
    top = TopTokens(np.full((6, 1), 9, np.int32), np.full((6, 1), 0.9, np.float32))
    store.teach_prompt(tokens, 0, top)
    assert store.num_entries == (4, 2, 0, 0)
    assert successors(store, np.array([-(2**31), -7, -7, -7], np.int32))[2] == 0
    assert successors(store, context_of(3, 4))[2] == 2


def test_repeats_are_averaged_and_cut_to_ten_as_the_paper_says() -> None:
    random = np.random.default_rng(3)
    store = NgramStore(2**20)
    expected: dict[int, float] = {}
    for seen in range(40):
        ids, probabilities = random_rows(random, 1, 30)
        store.harvest(context_of(7, 8, 9, 3)[None], ids, probabilities)
        new = dict(zip(ids[0].tolist(), probabilities[0].tolist(), strict=True))
        mixed = {
            token: (expected.get(token, 0.0) * seen + new.get(token, 0.0)) / (seen + 1) for token in expected | new
        }
        expected = dict(sorted(mixed.items(), key=lambda item: -item[1])[:NUM_SUCCESSORS])
    found, values, _ = successors(store, context_of(7, 8, 9, 3))
    assert dict(zip(found.tolist(), values.tolist(), strict=True)) == pytest.approx(expected, rel=1e-4)


def learn(store: NgramStore, token: int, *, is_firm: bool) -> None:
    """One row after 7, 8, 9, 3 whose only successor is `token`."""
    law = np.array([[token]], np.int32), np.array([[0.8]], np.float32)
    store.harvest(context_of(7, 8, 9, 3)[None], *law, np.array([is_firm]))


def test_rows_off_the_text_speak_for_a_4_gram_only_until_the_text_does() -> None:
    store = NgramStore(2**20)
    context = context_of(7, 8, 9, 3)
    learn(store, 1, is_firm=False)
    learn(store, 2, is_firm=False)
    assert successors(store, context)[0].tolist() == [2]
    learn(store, 3, is_firm=True)
    learn(store, 4, is_firm=False)
    assert successors(store, context)[0].tolist() == [3]
    learn(store, 5, is_firm=True)
    assert successors(store, context)[1].tolist() == pytest.approx([0.4, 0.4])
    store.check_integrity()


def test_every_row_speaks_for_three_tokens_and_the_newest_for_a_quarter() -> None:
    store = NgramStore(2**20)
    for token, is_firm in ((1, True), (2, False), (3, True), (4, False), (5, False)):
        learn(store, token, is_firm=is_firm)
    ids, probabilities, ngram = successors(store, context_of(8, 9, 3))
    assert ngram == 3
    found = dict(zip(ids.tolist(), probabilities.tolist(), strict=True))
    rest = 0.8 / 3 * 0.75 * 0.75  # of the first three, alike until then
    assert found == pytest.approx({5: 0.2, 4: 0.15, 1: rest, 2: rest, 3: rest})
    store.check_integrity()


@pytest.mark.parametrize("shorter", [(3,), (9, 3)])
def test_every_row_speaks_for_one_or_two_tokens_and_the_newest_for_half(shorter: tuple[int, ...]) -> None:
    store = NgramStore(2**20)
    for token, is_firm in ((1, True), (2, False), (3, True), (4, False)):
        learn(store, token, is_firm=is_firm)
    ids, probabilities, ngram = successors(store, context_of(*shorter))
    assert ngram == len(shorter)
    assert dict(zip(ids.tolist(), probabilities.tolist(), strict=True)) == pytest.approx(
        {4: 0.4, 3: 0.2, 2: 0.1, 1: 0.1}
    )
    store.check_integrity()


def test_successors_of_two_tokens_come_first_and_those_of_the_last_alone_are_the_fallback() -> None:
    store = NgramStore(2**20)
    harvest(store, [context_of(5, 7)], [{100: 0.9}])
    harvest(store, [context_of(6, 7)], [{200: 0.9}])

    def found(previous: int, token: int, use_bigram: bool = True) -> tuple[list[int], int]:
        entry, tier = find_successors(store.arrays, previous, token, use_bigram)
        return successors_of(store, entry)[0].tolist(), tier

    assert found(5, 7) == ([100], 1)
    assert found(6, 7) == ([200], 1)
    for previous, use_bigram in ((99, True), (-1, True), (5, False)):
        ids, tier = found(previous, 7, use_bigram)
        assert (sorted(ids), tier) == ([100, 200], 0)
    assert found(5, 8)[0] == []


def test_rows_of_fewer_or_more_than_ten_successors_are_taken() -> None:
    store = NgramStore(2**20)
    harvest(store, [context_of(1)], [{5: 0.5, 6: 0.3}])
    assert successors(store, context_of(1))[0].tolist() == [5, 6]
    harvest(store, [context_of(2)], [{token: 0.05 - token / 1000 for token in range(16)}])
    assert successors(store, context_of(2))[0].tolist() == list(range(10))


def test_the_byte_limit_holds_under_random_load_and_the_books_balance() -> None:
    random = np.random.default_rng(1)
    max_bytes = 300_000
    store = NgramStore(max_bytes)
    sizes = set()
    for _ in range(120):
        rows = int(random.integers(1, 150))
        contexts = random.integers(0, 40, (rows, LONGEST_NGRAM)).astype(np.int32)
        contexts[random.random(rows) < 0.1, 0] = NO_TOKEN
        store.harvest(contexts, *random_rows(random, rows, 50))
        for context in contexts[:20]:
            assert successors(store, context)[2] >= 1
        store.check_integrity()
        assert store.num_bytes <= max_bytes
        assert store.num_bytes == sum(array.nbytes for array in store.arrays) - store.arrays.counters.nbytes
        sizes.add(store.num_bytes)
    assert len(sizes) > 2, "the store never grew"
    assert sum(store.num_entries) > 0.9 * store.arrays.keys.size, "the store never filled"


def test_growing_keeps_entries_but_for_the_odd_full_set() -> None:
    random = np.random.default_rng(5)
    store = NgramStore(2**23)
    contexts = random.integers(0, 1000, (3000, LONGEST_NGRAM)).astype(np.int32)
    ids, probabilities = random_rows(random, len(contexts), 50)
    for start in range(0, len(contexts), 50):
        part = slice(start, start + 50)
        store.harvest(contexts[part], ids[part], probabilities[part])
    found = [successors(store, context) for context in contexts]
    kept = [(ngram, found_ids.tolist() == row.tolist()) for (found_ids, _, ngram), row in zip(found, ids, strict=True)]
    assert sum(ngram == LONGEST_NGRAM for ngram, _ in kept) > 0.98 * len(contexts)
    assert all(is_same for ngram, is_same in kept if ngram == LONGEST_NGRAM)


def test_entries_in_use_survive_a_flood_of_others() -> None:
    random = np.random.default_rng(2)
    store = NgramStore(400_000)
    hot = random.integers(0, 100, (200, LONGEST_NGRAM)).astype(np.int32)
    store.harvest(hot, *random_rows(random, len(hot), 50))
    for _ in range(100):
        for context in hot:
            successors(store, context)
        others = random.integers(1000, 60_000, (60, LONGEST_NGRAM)).astype(np.int32)
        store.harvest(others, *random_rows(random, len(others), 50))
    assert sum(successors(store, context)[2] == LONGEST_NGRAM for context in hot) > 0.97 * len(hot)


def test_a_million_ngrams_go_through_sixteen_megabytes_and_the_latest_are_found() -> None:
    random = np.random.default_rng(7)
    store = NgramStore(16 * 2**20)
    contexts = random.integers(0, 2**17, (270_000, LONGEST_NGRAM)).astype(np.int32)
    ids, probabilities = random_rows(random, 100, 50)
    for start in range(0, len(contexts), 100):
        store.harvest(contexts[start : start + 100], ids, probabilities)
        assert store.num_bytes <= 16 * 2**20
    store.check_integrity()
    assert sum(store.num_entries) > 0.95 * store.arrays.keys.size
    known = [successors(store, context)[2] for context in contexts[-2000:]]
    assert sum(ngram == LONGEST_NGRAM for ngram in known) > 1900
