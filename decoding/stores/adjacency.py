"""The adjacency table: the most likely successors of a token, and of a pair of tokens, seen in logits.

Owns one bounded table shared by a session's requests. Knows nothing of trees: the caller says which
token precedes which. One hash table holds both tiers, so memory goes to whichever is used.
Invariant: an entry's successors are in falling order of probability, padded with token -1.
"""

from __future__ import annotations

from typing import NamedTuple

import numba as nb
import numpy as np
from numpy.typing import NDArray

NUM_SUCCESSORS = 10  # the paper's K
NO_TOKEN = -1

_NUM_WAYS = 8  # one set's keys fill a cache line
_FIRST_SETS = 32
_NEW_SHARE = 0.5  # of an entry's average: a new row counts as much as all before it
_MAX_LOAD = 0.5  # beyond this share of used entries the table grows while it may
_EMPTY = -1
_BYTES_PER_ENTRY = 8 + 8 + NUM_SUCCESSORS * (4 + 4)

_CLOCK, _UNIGRAMS, _BIGRAMS, _BIGRAM_HITS, _UNIGRAM_HITS, _MISSES = range(6)


class AdjacencyArrays(NamedTuple):
    """The table as compiled code sees it. S sets of W ways make E = S * W entries.

    keys: int64 [S, W], `pair_key` of each entry or -1. stamps: int64 [S, W], when it was last useful.
    ids: int32 [E, K]; probabilities: float32 [E, K]. counters: int64 [6], indexed by the names above.
    """

    keys: NDArray[np.int64]
    stamps: NDArray[np.int64]
    ids: NDArray[np.int32]
    probabilities: NDArray[np.float32]
    counters: NDArray[np.int64]


class AdjacencyTable:
    """Two tiers, bigram and unigram, of top-10 successors (GOOSE, section 4.1 and appendix C.1).

    max_bytes bounds the arrays; the table starts small and doubles. When a set is full its least
    recently useful entry goes; an entry nobody asked for or saw again counts as one table's turnover older.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_sets = max(1, max_bytes // (_BYTES_PER_ENTRY * _NUM_WAYS))
        self._arrays = _allocate(min(_FIRST_SETS, self._max_sets))

    @property
    def arrays(self) -> AdjacencyArrays:
        """The arrays as of now; `harvest` may replace them, so do not keep them."""
        return self._arrays

    @property
    def num_bytes(self) -> int:
        return self._arrays.keys.size * _BYTES_PER_ENTRY

    @property
    def num_unigrams(self) -> int:
        return int(self._arrays.counters[_UNIGRAMS])

    @property
    def num_bigrams(self) -> int:
        return int(self._arrays.counters[_BIGRAMS])

    @property
    def lookups(self) -> tuple[int, int, int]:
        """How many look-ups the bigram tier, the unigram tier and neither answered."""
        counters = self._arrays.counters
        return int(counters[_BIGRAM_HITS]), int(counters[_UNIGRAM_HITS]), int(counters[_MISSES])

    @property
    def hit_rate(self) -> float:
        """Share of look-ups that found successors in either tier; 0 before the first."""
        bigram_hits, unigram_hits, misses = self.lookups
        return (bigram_hits + unigram_hits) / max(1, bigram_hits + unigram_hits + misses)

    def harvest(
        self,
        previous: NDArray[np.int32],
        tokens: NDArray[np.int32],
        top_ids: NDArray[np.int32],
        top_probabilities: NDArray[np.float32],
    ) -> None:
        """Average the target's top tokens after each row into what was known, the new row counting half.

        The paper and its code overwrite. Averaging emits more per step: replayed greedily on the bundled
        model, 2% more at 8 and 16 nodes, 4% at 60.

        previous, tokens: int32 [n], each row's token and the one before it on its path (-1: unknown,
        then only the unigram tier learns). top_ids, top_probabilities: [n, k], most likely first; k
        beyond 10 is cut.
        """
        self._reserve(2 * len(tokens))
        ids = np.ascontiguousarray(top_ids, np.int32)  # another layout would be compiled for anew
        _harvest(self._arrays, previous, tokens, ids, np.ascontiguousarray(top_probabilities, np.float32))

    def successors(self, previous: int, token: int) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """Successor tokens and probabilities after (previous, token), most likely first; maybe none."""
        entry, _ = find_successors(self._arrays, previous, token, True)
        if entry < 0:
            return np.empty(0, np.int32), np.empty(0, np.float32)
        ids = self._arrays.ids[entry]
        num_known = int((ids != NO_TOKEN).sum())
        return ids[:num_known].copy(), self._arrays.probabilities[entry, :num_known].copy()

    def check_integrity(self) -> None:
        """Raise AssertionError unless counts, bounds and every entry's order hold."""
        keys, _, ids, probabilities, counters = self._arrays
        used = keys.ravel() != _EMPTY
        is_bigram = keys.ravel() >> 32 != 0
        assert int((used & is_bigram).sum()) == counters[_BIGRAMS], counters
        assert int((used & ~is_bigram).sum()) == counters[_UNIGRAMS], counters
        assert len(np.unique(keys.ravel()[used])) == int(used.sum()), "a key is stored twice"
        assert np.all(np.diff(probabilities[used], axis=1) <= 0), "successors out of order"
        assert np.all((ids[used] == NO_TOKEN) <= (probabilities[used] == 0)), "padding with weight"
        assert len(keys) <= self._max_sets, (len(keys), self._max_sets)

    def _reserve(self, num_new: int) -> None:
        """Grow until `num_new` more entries keep the load low, or the byte limit is reached."""
        num_sets = len(self._arrays.keys)
        num_used = self.num_unigrams + self.num_bigrams
        while num_sets < self._max_sets and num_used + num_new > _MAX_LOAD * num_sets * _NUM_WAYS:
            num_sets = min(2 * num_sets, self._max_sets)
        if num_sets > len(self._arrays.keys):
            larger = _allocate(num_sets)
            _move(self._arrays, larger)
            self._arrays = larger


def _allocate(num_sets: int) -> AdjacencyArrays:
    num_entries = num_sets * _NUM_WAYS
    return AdjacencyArrays(
        keys=np.full((num_sets, _NUM_WAYS), _EMPTY, np.int64),
        stamps=np.full((num_sets, _NUM_WAYS), np.iinfo(np.int64).min, np.int64),
        ids=np.full((num_entries, NUM_SUCCESSORS), NO_TOKEN, np.int32),
        probabilities=np.zeros((num_entries, NUM_SUCCESSORS), np.float32),
        counters=np.zeros(6, np.int64),
    )


@nb.njit(cache=True)
def pair_key(previous: int, token: int) -> np.int64:
    """One number per (previous, token); previous -1 gives the unigram tier's keys, those below 2**32."""
    return ((np.int64(previous) + 1) << 32) | np.int64(token)


@nb.njit(cache=True)
def _set_of(key: np.int64, num_sets: int) -> np.int64:
    mixed = np.uint64(key) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
    return np.int64(((mixed >> np.uint64(32)) * np.uint64(num_sets)) >> np.uint64(32))


@nb.njit(cache=True)
def _find(table: AdjacencyArrays, key: np.int64) -> int:
    """The entry of `key`, now marked as just used, or -1."""
    row: int = _set_of(key, table.keys.shape[0])
    for way in range(_NUM_WAYS):
        if table.keys[row, way] == key:
            table.stamps[row, way] = table.counters[_CLOCK]
            return row * _NUM_WAYS + way
    return -1


@nb.njit(cache=True)
def _claim(table: AdjacencyArrays, key: np.int64, stamp: int) -> int:
    """An entry for a key that is not there: a free one, or the least recently useful of its set."""
    row: int = _set_of(key, table.keys.shape[0])
    victim = 0
    for way in range(1, _NUM_WAYS):
        if table.stamps[row, way] < table.stamps[row, victim]:
            victim = way
    if table.keys[row, victim] != _EMPTY:
        table.counters[_BIGRAMS if table.keys[row, victim] >> 32 != 0 else _UNIGRAMS] -= 1
    table.counters[_BIGRAMS if key >> 32 != 0 else _UNIGRAMS] += 1
    table.keys[row, victim] = key
    table.stamps[row, victim] = stamp
    return row * _NUM_WAYS + victim


@nb.njit(cache=True)
def _move(old: AdjacencyArrays, new: AdjacencyArrays) -> None:
    for row in range(old.keys.shape[0]):
        for way in range(_NUM_WAYS):
            if old.keys[row, way] != _EMPTY:
                entry = _claim(new, old.keys[row, way], old.stamps[row, way])
                new.ids[entry] = old.ids[row * _NUM_WAYS + way]
                new.probabilities[entry] = old.probabilities[row * _NUM_WAYS + way]
    new.counters[_CLOCK] = old.counters[_CLOCK]
    new.counters[_BIGRAM_HITS:] = old.counters[_BIGRAM_HITS:]


@nb.njit(cache=True)
def _blend(
    ids: NDArray[np.int32],
    probabilities: NDArray[np.float32],
    new_ids: NDArray[np.int32],
    new_probabilities: NDArray[np.float32],
    share: np.float32,
) -> None:
    """Move an entry towards new successors by `share`, and keep the best of old and new in order."""
    merged_ids = np.empty(2 * NUM_SUCCESSORS, np.int32)
    merged = np.empty(2 * NUM_SUCCESSORS, np.float32)
    num_old = 0
    while num_old < NUM_SUCCESSORS and ids[num_old] != NO_TOKEN:
        merged_ids[num_old], merged[num_old] = ids[num_old], probabilities[num_old] * (1 - share)
        num_old += 1
    num_merged = num_old
    for rank in range(len(new_ids)):
        slot = 0
        while slot < num_old and merged_ids[slot] != new_ids[rank]:
            slot += 1
        if slot == num_old:
            slot = num_merged
            merged_ids[slot], merged[slot] = new_ids[rank], 0.0
            num_merged += 1
        merged[slot] += share * new_probabilities[rank]
    for rank in range(min(num_merged, NUM_SUCCESSORS)):
        best = rank
        for slot in range(rank + 1, num_merged):
            if merged[slot] > merged[best]:
                best = slot
        ids[rank], probabilities[rank] = merged_ids[best], merged[best]
        merged_ids[best], merged[best] = merged_ids[rank], merged[rank]
    ids[num_merged:] = NO_TOKEN
    probabilities[num_merged:] = 0.0


@nb.njit(cache=True)
def _harvest(
    table: AdjacencyArrays,
    previous: NDArray[np.int32],
    tokens: NDArray[np.int32],
    top_ids: NDArray[np.int32],
    top_probabilities: NDArray[np.float32],
) -> None:
    width = min(top_ids.shape[1], NUM_SUCCESSORS)
    for row in range(len(tokens)):
        for tier in range(2):
            before = previous[row] if tier == 1 else NO_TOKEN
            if tier == 1 and before < 0:
                continue
            key = pair_key(before, tokens[row])
            table.counters[_CLOCK] += 1
            entry = _find(table, key)
            share = np.float32(_NEW_SHARE)
            if entry < 0:
                entry = _claim(table, key, table.counters[_CLOCK] - table.keys.size)
                table.ids[entry] = NO_TOKEN
                share = np.float32(1.0)
            _blend(table.ids[entry], table.probabilities[entry], top_ids[row, :width], top_probabilities[row], share)


@nb.njit(cache=True)
def find_successors(table: AdjacencyArrays, previous: int, token: int, use_bigram: bool) -> tuple[int, int]:
    """The entry for (previous, token): bigram tier first, unigram as fallback, -1 for neither."""
    if use_bigram and previous >= 0:
        entry: int = _find(table, pair_key(previous, token))
        if entry >= 0:
            table.counters[_BIGRAM_HITS] += 1
            return entry, 1
    entry = _find(table, pair_key(NO_TOKEN, token))
    table.counters[_UNIGRAM_HITS if entry >= 0 else _MISSES] += 1
    return entry, 0
