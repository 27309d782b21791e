"""The n-gram store of STAND: what the target thought came after the last 1 to 4 tokens, averaged over every sight.

Owns one bounded table shared by a session's requests. Knows nothing of trees: the caller brings each row's last
tokens. One hash table holds the four tables of the paper, so memory goes to whichever is used.
Invariant: an entry's successors are in falling order of probability, padded with token -1.
"""

from __future__ import annotations

from typing import NamedTuple

import numba as nb
import numpy as np
from numpy.typing import NDArray

NUM_SUCCESSORS = 10  # the paper's top 10
LONGEST_NGRAM = 4
NO_TOKEN = -1

_NUM_WAYS = 8  # one set's keys fill a cache line
_FIRST_SETS = 64
_SHORT_MEMORY = 3  # rows: a shorter n-gram than the longest averages as if it had seen no more
_MAX_LOAD = 0.5  # beyond this share of used entries the table grows while it may
_EMPTY = np.uint64(0)
_BYTES_PER_ENTRY = 8 + 8 + 4 + NUM_SUCCESSORS * (4 + 4)

_CLOCK = 0
_ENTRIES, _ASKED, _FOUND = 0, LONGEST_NGRAM, 2 * LONGEST_NGRAM  # counters[_ASKED + n] counts for n-grams
_NUM_COUNTERS = 3 * LONGEST_NGRAM + 1


class NgramArrays(NamedTuple):
    """The table as compiled code sees it. S sets of W ways make E = S * W entries.

    keys: uint64 [S, W], a hash of n tokens whose low two bits are n - 1, or 0 when free. stamps: int64 [S, W],
    when it was last useful. seen: int32 [E], how many rows its successors are the mean of: firm ones for 4-grams, any
    for shorter ones, where it stops at 3. ids: int32 [E, K];
    probabilities: float32 [E, K]. counters: int64 [13], indexed by the names above.
    """

    keys: NDArray[np.uint64]
    stamps: NDArray[np.int64]
    seen: NDArray[np.int32]
    ids: NDArray[np.int32]
    probabilities: NDArray[np.float32]
    counters: NDArray[np.int64]


class NgramStore:
    """1- to 4-grams with their top 10 next tokens and mean probabilities (STAND, section 4.1).

    max_bytes bounds the arrays; the table starts small and doubles. When a set is full its least recently
    useful entry goes; an entry nobody asked for or saw again counts as one table's turnover older. Two n-grams
    share an entry when 62 bits of hash agree, which costs a wrong guess and nothing else. Shorter n-grams are asked
    where a text is new: there what the target said a moment ago, on whatever path, is worth more than a long mean,
    so all rows count and the newest for at least a quarter. renormalise: scale
    what the cut to ten leaves to a sum of one.
    """

    def __init__(self, max_bytes: int, renormalise: bool = False) -> None:
        self._max_sets = max(1, max_bytes // (_BYTES_PER_ENTRY * _NUM_WAYS))
        self._renormalise = renormalise
        self._arrays = _allocate(min(_FIRST_SETS, self._max_sets))

    @property
    def arrays(self) -> NgramArrays:
        """The arrays as of now; `harvest` may replace them, so do not keep them."""
        return self._arrays

    @property
    def num_bytes(self) -> int:
        return self._arrays.keys.size * _BYTES_PER_ENTRY

    @property
    def num_entries(self) -> tuple[int, ...]:
        """Entries of 1-, 2-, 3- and 4-grams."""
        return self._counts(_ENTRIES)

    @property
    def hit_rates(self) -> tuple[float, ...]:
        """By n, the share found of the look-ups that came to n-grams; a look-up starts at 4 and ends at a hit."""
        asked, found = self._counts(_ASKED), self._counts(_FOUND)
        return tuple(hits / max(1, tries) for hits, tries in zip(found, asked, strict=True))

    @property
    def lookups(self) -> tuple[int, ...]:  # answered by 1-, 2-, 3- and 4-grams
        return self._counts(_FOUND)

    def harvest(
        self,
        contexts: NDArray[np.int32],
        top_ids: NDArray[np.int32],
        top_probabilities: NDArray[np.float32],
        is_firm: NDArray[np.bool_] | None = None,
    ) -> None:
        """Average the target's top tokens after each row into the row's n-grams.

        contexts: int32 [r, 4], the last tokens of each row's path, oldest first, -1 before its beginning.
        top_ids, top_probabilities: [r, k], most likely first; k beyond 10 is cut. is_firm: bool [r], whether the
        path is part of the text (None: all are); other rows speak for a 4-gram only until a firm one does.
        """
        self._reserve(LONGEST_NGRAM * len(contexts))
        is_firm = np.ones(len(contexts), np.bool_) if is_firm is None else is_firm
        _harvest(self._arrays, contexts, top_ids, top_probabilities, is_firm, self._renormalise)

    def num_foretold(self, contexts: NDArray[np.int32], tokens: NDArray[np.int32]) -> int:
        """How many of `tokens`, int32 [r], are what the store thinks likeliest after `contexts`, int32 [r, 4]."""
        return int(_num_foretold(self._arrays, contexts, tokens))

    def successors(self, context: NDArray[np.int32]) -> tuple[NDArray[np.int32], NDArray[np.float32], int]:
        """Next tokens and probabilities by the longest n-gram known, and its n; 0 when there is none."""
        entry, ngram = find_longest(self._arrays, context)
        if entry < 0:
            return np.empty(0, np.int32), np.empty(0, np.float32), 0
        num_known = int((self._arrays.ids[entry] != NO_TOKEN).sum())
        ids, probabilities = self._arrays.ids[entry, :num_known], self._arrays.probabilities[entry, :num_known]
        return ids.copy(), probabilities.copy(), ngram

    def check_integrity(self) -> None:
        """Raise AssertionError unless counts, bounds and every entry's order hold."""
        keys, _, seen, ids, probabilities, _ = self._arrays
        used = keys.ravel() != _EMPTY
        lengths = (keys.ravel()[used] & np.uint64(3)).astype(np.int64)
        assert np.bincount(lengths, minlength=LONGEST_NGRAM).tolist() == list(self.num_entries), self.num_entries
        assert len(np.unique(keys.ravel()[used])) == int(used.sum()), "a key is stored twice"
        assert np.all(np.diff(probabilities[used], axis=1) <= 0), "successors out of order"
        assert np.all((ids[used] == NO_TOKEN) == (probabilities[used] == 0)), "padding with weight"
        assert np.all(probabilities[used].sum(axis=1) < 1 + 1e-4), "more than all"
        assert np.all(seen[used] >= 0), seen
        assert len(keys) <= self._max_sets, (len(keys), self._max_sets)

    def _counts(self, first: int) -> tuple[int, ...]:
        return tuple(self._arrays.counters[first + 1 : first + 1 + LONGEST_NGRAM].tolist())

    def _reserve(self, num_new: int) -> None:
        """Grow until `num_new` more entries keep the load low, or the byte limit is reached."""
        num_sets = len(self._arrays.keys)
        num_used = sum(self.num_entries)
        while num_sets < self._max_sets and num_used + num_new > _MAX_LOAD * num_sets * _NUM_WAYS:
            num_sets = min(2 * num_sets, self._max_sets)
        if num_sets > len(self._arrays.keys):
            larger = _allocate(num_sets)
            _move(self._arrays, larger)
            self._arrays = larger


def _allocate(num_sets: int) -> NgramArrays:
    num_entries = num_sets * _NUM_WAYS
    return NgramArrays(
        keys=np.zeros((num_sets, _NUM_WAYS), np.uint64),
        stamps=np.full((num_sets, _NUM_WAYS), np.iinfo(np.int64).min, np.int64),
        seen=np.zeros(num_entries, np.int32),
        ids=np.full((num_entries, NUM_SUCCESSORS), NO_TOKEN, np.int32),
        probabilities=np.zeros((num_entries, NUM_SUCCESSORS), np.float32),
        counters=np.zeros(_NUM_COUNTERS, np.int64),
    )


@nb.njit(cache=True, forceinline=True)
def _hash_on(mixed: np.uint64, token: int) -> np.uint64:
    mixed = (mixed ^ np.uint64(token + 1)) * np.uint64(0x9E3779B97F4A7C15)
    return np.uint64((mixed ^ (mixed >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9))


@nb.njit(cache=True, forceinline=True)
def _key_of(mixed: np.uint64, ngram: int) -> np.uint64:
    key = ((mixed ^ (mixed >> np.uint64(32))) & ~np.uint64(3)) | np.uint64(ngram - 1)
    return key if key != _EMPTY else np.uint64(4)


@nb.njit(cache=True, forceinline=True)
def _set_of(key: np.uint64, num_sets: int) -> np.int64:
    return np.int64(((key >> np.uint64(32)) * np.uint64(num_sets)) >> np.uint64(32))


@nb.njit(cache=True, forceinline=True)
def _find(table: NgramArrays, key: np.uint64) -> int:
    """The entry of `key`, now marked as just used, or -1."""
    row: int = _set_of(key, table.keys.shape[0])
    for way in range(_NUM_WAYS):
        if table.keys[row, way] == key:
            table.stamps[row, way] = table.counters[_CLOCK]
            return row * _NUM_WAYS + way
    return -1


@nb.njit(cache=True)
def _claim(table: NgramArrays, key: np.uint64, stamp: int) -> int:
    """An entry for a key that is not there: a free one, or the least recently useful of its set."""
    row: int = _set_of(key, table.keys.shape[0])
    victim = 0
    for way in range(1, _NUM_WAYS):
        if table.stamps[row, way] < table.stamps[row, victim]:
            victim = way
    if table.keys[row, victim] != _EMPTY:
        table.counters[_ENTRIES + 1 + (table.keys[row, victim] & np.uint64(3))] -= 1
    table.counters[_ENTRIES + 1 + (key & np.uint64(3))] += 1
    table.keys[row, victim] = key
    table.stamps[row, victim] = stamp
    return row * _NUM_WAYS + victim


@nb.njit(cache=True)
def _move(old: NgramArrays, new: NgramArrays) -> None:
    for row in range(old.keys.shape[0]):
        for way in range(_NUM_WAYS):
            if old.keys[row, way] != _EMPTY:
                entry = _claim(new, old.keys[row, way], old.stamps[row, way])
                new.seen[entry] = old.seen[row * _NUM_WAYS + way]
                new.ids[entry] = old.ids[row * _NUM_WAYS + way]
                new.probabilities[entry] = old.probabilities[row * _NUM_WAYS + way]
    new.counters[_CLOCK] = old.counters[_CLOCK]
    new.counters[_ASKED + 1 :] = old.counters[_ASKED + 1 :]


@nb.njit(cache=True)
def _harvest(
    table: NgramArrays,
    contexts: NDArray[np.int32],
    top_ids: NDArray[np.int32],
    top_probabilities: NDArray[np.float32],
    is_firm: NDArray[np.bool_],
    renormalise: bool,
) -> None:
    merged_ids = np.empty(2 * NUM_SUCCESSORS, np.int32)
    merged = np.empty(2 * NUM_SUCCESSORS, np.float32)
    for row in range(len(contexts)):
        mixed = np.uint64(0)
        for ngram in range(1, LONGEST_NGRAM + 1):
            token = contexts[row, LONGEST_NGRAM - ngram]
            if token == NO_TOKEN:
                break
            mixed = _hash_on(mixed, token)
            key = _key_of(mixed, ngram)
            table.counters[_CLOCK] += 1
            entry = _find(table, key)
            if entry < 0:
                entry = _claim(table, key, table.counters[_CLOCK] - table.keys.size)
                table.seen[entry] = 0
            elif ngram == LONGEST_NGRAM and table.seen[entry] > 0 and not is_firm[row]:
                continue
            _average(table, entry, top_ids[row], top_probabilities[row], merged_ids, merged)
            if ngram == LONGEST_NGRAM:
                table.seen[entry] += is_firm[row]
            else:
                table.seen[entry] = min(table.seen[entry] + 1, _SHORT_MEMORY)
            if renormalise:
                table.probabilities[entry] /= table.probabilities[entry].sum()


@nb.njit(cache=True)
def _average(
    table: NgramArrays,
    entry: int,
    new_ids: NDArray[np.int32],
    new_probabilities: NDArray[np.float32],
    merged_ids: NDArray[np.int32],
    merged: NDArray[np.float32],
) -> None:
    """k/(k+1) of what k rows gave plus 1/(k+1) of the new one, missing ids zero, cut to the top; buffers: [2 K]."""
    share = np.float32(1.0 / (table.seen[entry] + 1))
    known = 0
    if table.seen[entry] > 0:
        while known < NUM_SUCCESSORS and table.ids[entry, known] != NO_TOKEN:
            merged_ids[known] = table.ids[entry, known]
            merged[known] = table.probabilities[entry, known] * (1 - share)
            known += 1
    size = known
    for rank in range(min(len(new_ids), NUM_SUCCESSORS)):
        slot = 0
        while slot < known and merged_ids[slot] != new_ids[rank]:
            slot += 1
        if slot == known:
            slot = size
            merged_ids[size] = new_ids[rank]
            merged[size] = 0.0
            size += 1
        merged[slot] += share * new_probabilities[rank]
    _sort_falling(merged_ids, merged, size)
    for slot in range(NUM_SUCCESSORS):
        is_known = slot < size and merged[slot] > 0
        table.ids[entry, slot] = merged_ids[slot] if is_known else NO_TOKEN
        table.probabilities[entry, slot] = merged[slot] if is_known else 0.0


@nb.njit(cache=True)
def _sort_falling(ids: NDArray[np.int32], values: NDArray[np.float32], size: int) -> None:
    for index in range(1, size):
        token, value = ids[index], values[index]
        slot = index
        while slot > 0 and values[slot - 1] < value:
            ids[slot], values[slot] = ids[slot - 1], values[slot - 1]
            slot -= 1
        ids[slot], values[slot] = token, value


@nb.njit(cache=True, forceinline=True)
def find_longest(table: NgramArrays, context: NDArray[np.int32]) -> tuple[int, int]:
    """The entry of the longest n-gram known and its n, or (-1, 0); context: int32 [4] as in `harvest`."""
    for ngram in range(LONGEST_NGRAM, 0, -1):
        if context[LONGEST_NGRAM - ngram] == NO_TOKEN:
            continue
        mixed = np.uint64(0)
        for back in range(1, ngram + 1):
            mixed = _hash_on(mixed, context[LONGEST_NGRAM - back])
        table.counters[_ASKED + ngram] += 1
        entry: int = _find(table, _key_of(mixed, ngram))
        if entry >= 0:
            table.counters[_FOUND + ngram] += 1
            return entry, ngram
    return -1, 0


@nb.njit(cache=True)
def _num_foretold(table: NgramArrays, contexts: NDArray[np.int32], tokens: NDArray[np.int32]) -> int:
    count = 0
    for row in range(len(tokens)):
        entry, _ = find_longest(table, contexts[row])
        if entry >= 0 and table.ids[entry, 0] == tokens[row]:
            count += 1
    return count
