"""A bounded table of what comes next: for each key the ten likeliest successors and their probabilities.

Owns the arrays, their growth, and who leaves a full set. Knows neither what a key stands for nor how much a new row
counts: `ngram` does. Four tiers of keys at most share the memory, so it goes to whichever is used.
Invariant: an entry's successors are in falling order of probability, padded with token -1.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from decoding.kernels.numba_kernel import kernel

NUM_SUCCESSORS = 10  # GOOSE's K, and what STAND keeps
NO_TOKEN = -1

_NUM_TIERS = 4
_NUM_WAYS = 8  # one set's keys fill a cache line
_MAX_LOAD = 0.5  # beyond this share of used entries the table grows while it may
_FREE = np.uint64(0)
_MOST_SEEN = 2**30  # far beyond what any count reaches, and far below what overflows
_MOST_PROBABILITY = 1 + 1e-4  # with what rounding adds

_CLOCK, ENTRIES = 0, 1  # counters[ENTRIES + tier]


class SuccessorArrays(NamedTuple):
    """The table as compiled code sees it. S sets of W ways make E = S * W entries of K successors.

    keys: uint64 [S, W], from `key_of`, or 0 when free. stamps: int64 [S, W], when the entry was last useful.
    seen: int32 [E], how many rows its successors are the mean of.
    ids: int32 [E, K]; probabilities: float32 [E, K]. counters: int64 [5], indexed by the names above.
    """

    keys: NDArray[np.uint64]
    stamps: NDArray[np.int64]
    seen: NDArray[np.int32]
    ids: NDArray[np.int32]
    probabilities: NDArray[np.float32]
    counters: NDArray[np.int64]


class SuccessorTable:
    """What every table of successors is, whatever its keys.

    max_bytes bounds the arrays; the table starts small and doubles. When a set is full its least recently useful
    entry goes; an entry nobody asked for or saw again counts as one table's turnover older. Two keys share an entry
    when 62 bits of hash agree, which costs a wrong guess and nothing else. first_sets: to start with.
    """

    def __init__(self, max_bytes: int, first_sets: int) -> None:
        self._bytes_per_entry = 8 + 8 + 4 + NUM_SUCCESSORS * (4 + 4)
        self._max_sets = max(1, max_bytes // (self._bytes_per_entry * _NUM_WAYS))
        self.arrays = _allocate(min(first_sets, self._max_sets))
        self.most_used = self._most_used()  # entries, beyond which it grows, or has grown as far as it may

    def _most_used(self) -> float:
        num_sets = len(self.arrays.keys)
        return _MAX_LOAD * num_sets * _NUM_WAYS if num_sets < self._max_sets else float("inf")

    @property
    def num_bytes(self) -> int:
        return self.arrays.keys.size * self._bytes_per_entry

    @property
    def num_entries(self) -> tuple[int, ...]:
        """By tier."""
        return tuple(self.arrays.counters[ENTRIES:].tolist())

    def reserve(self, num_new: int) -> None:
        """Grow until `num_new` more entries keep the load low, or the byte limit is reached."""
        num_sets = len(self.arrays.keys)
        num_used = sum(self.num_entries)
        while num_sets < self._max_sets and num_used + num_new > _MAX_LOAD * num_sets * _NUM_WAYS:
            num_sets = min(2 * num_sets, self._max_sets)
        if num_sets > len(self.arrays.keys):
            larger = _allocate(num_sets)
            _move(self.arrays, larger)
            self.arrays = larger
            self.most_used = self._most_used()

    def is_sound(self, vocab_size: int) -> bool:
        """Whether the arrays, which came from outside, are such as this table writes."""
        keys, _, seen, ids, probabilities, counters = self.arrays
        used = keys[keys != _FREE]
        tiers = np.bincount((used & np.uint64(_NUM_TIERS - 1)).astype(np.int64), minlength=_NUM_TIERS)
        ranked = np.sort(ids, axis=1)
        return bool(
            np.array_equal(tiers, counters[ENTRIES:])
            and np.all((seen >= 0) & (seen <= _MOST_SEEN))
            and np.all((ids >= NO_TOKEN) & (ids < vocab_size))
            and np.all((ranked[:, 1:] != ranked[:, :-1]) | (ranked[:, 1:] == NO_TOKEN))
            and np.all((probabilities >= 0) & (probabilities <= _MOST_PROBABILITY))
            and np.all(np.diff(probabilities, axis=1) <= 0)
            and np.all((ids == NO_TOKEN) == (probabilities == 0))
        )

    def check_integrity(self) -> None:
        """Raise AssertionError unless counts, bounds and every entry's order hold."""
        keys, _, seen, ids, probabilities, _ = self.arrays
        used = keys.ravel() != _FREE
        tiers = (keys.ravel()[used] & np.uint64(_NUM_TIERS - 1)).astype(np.int64)
        assert np.bincount(tiers, minlength=_NUM_TIERS).tolist() == list(self.num_entries), self.num_entries
        assert len(np.unique(keys.ravel()[used])) == int(used.sum()), "a key is stored twice"
        assert np.all(np.diff(probabilities[used], axis=1) <= 0), "successors out of order"
        assert np.all((ids[used] == NO_TOKEN) <= (probabilities[used] == 0)), "padding with weight"
        assert np.all(seen >= 0), seen
        assert len(keys) <= self._max_sets, (len(keys), self._max_sets)


def _allocate(num_sets: int) -> SuccessorArrays:
    num_entries = num_sets * _NUM_WAYS
    return SuccessorArrays(
        keys=np.full((num_sets, _NUM_WAYS), _FREE, np.uint64),
        stamps=np.full((num_sets, _NUM_WAYS), np.iinfo(np.int64).min, np.int64),
        seen=np.zeros(num_entries, np.int32),
        ids=np.full((num_entries, NUM_SUCCESSORS), NO_TOKEN, np.int32),
        probabilities=np.zeros((num_entries, NUM_SUCCESSORS), np.float32),
        counters=np.zeros(1 + _NUM_TIERS, np.int64),
    )


@kernel(forceinline=True, borrows=True)
def mix(value: np.uint64) -> np.uint64:
    """Spread 64 bits over 64 bits; no two values give the same."""
    value = value * np.uint64(0x9E3779B97F4A7C15)
    return np.uint64((value ^ (value >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9))


@kernel(forceinline=True, borrows=True)
def key_of(mixed: np.uint64, tier: int) -> np.uint64:
    """A hash whose low two bits are the tier, never 0; `mixed` is what `mix` made of the tokens."""
    key = (mixed & ~np.uint64(_NUM_TIERS - 1)) | np.uint64(tier)
    return key if key != _FREE else np.uint64(_NUM_TIERS)


@kernel(forceinline=True, borrows=True)
def _tier_of(key: np.uint64) -> np.int64:
    return np.int64(key & np.uint64(_NUM_TIERS - 1))


@kernel(forceinline=True, borrows=True)
def _set_of(key: np.uint64, num_sets: int) -> np.int64:
    return np.int64(((key >> np.uint64(32)) * np.uint64(num_sets)) >> np.uint64(32))


@kernel(forceinline=True, borrows=True)
def look_up(table: SuccessorArrays, key: np.uint64) -> int:
    """The entry of `key`, now marked as just used, or -1."""
    row: int = _set_of(key, table.keys.shape[0])
    for way in range(_NUM_WAYS):
        if table.keys[row, way] == key:
            table.stamps[row, way] = table.counters[_CLOCK]
            return row * _NUM_WAYS + way
    return -1


@kernel(forceinline=True, borrows=True)
def find_or_claim(table: SuccessorArrays, key: np.uint64) -> tuple[int, bool]:
    """The entry that a row now teaches, and whether it is new; then it still holds what was there before."""
    table.counters[_CLOCK] += 1
    entry: int = look_up(table, key)
    if entry >= 0:
        return entry, False
    return _claim(table, key, table.counters[_CLOCK] - table.keys.size), True


@kernel(borrows=True)
def _claim(table: SuccessorArrays, key: np.uint64, stamp: int) -> int:
    """An entry for a key that is not there: a free one, or the least recently useful of its set."""
    row: int = _set_of(key, table.keys.shape[0])
    victim = 0
    for way in range(1, _NUM_WAYS):
        if table.stamps[row, way] < table.stamps[row, victim]:
            victim = way
    if table.keys[row, victim] != _FREE:
        table.counters[ENTRIES + _tier_of(table.keys[row, victim])] -= 1
    table.counters[ENTRIES + _tier_of(key)] += 1
    table.keys[row, victim] = key
    table.stamps[row, victim] = stamp
    return row * _NUM_WAYS + victim


@kernel(borrows=True)
def _move(old: SuccessorArrays, new: SuccessorArrays) -> None:
    for row in range(old.keys.shape[0]):
        for way in range(_NUM_WAYS):
            if old.keys[row, way] != _FREE:
                entry = _claim(new, old.keys[row, way], old.stamps[row, way])
                new.seen[entry] = old.seen[row * _NUM_WAYS + way]
                for rank in range(NUM_SUCCESSORS):
                    new.ids[entry, rank] = old.ids[row * _NUM_WAYS + way, rank]
                    new.probabilities[entry, rank] = old.probabilities[row * _NUM_WAYS + way, rank]
    new.counters[_CLOCK] = old.counters[_CLOCK]
