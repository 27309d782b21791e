"""The context index of one request: where the last 5, 4 or 3 tokens occurred before, and what followed.

Owns hash tables over positions; the tokens stay in the request's own array. Knows nothing of trees.
Invariant: an n-gram is indexed only once a token follows it, so every match has a continuation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numba as nb
import numpy as np
from numpy.typing import NDArray

LONGEST_NGRAM = 5
SHORTEST_NGRAM = 3
MAX_CHAIN = 20

_NUM_LENGTHS = LONGEST_NGRAM - SHORTEST_NGRAM + 1
_FIRST_SLOTS = 256
_MAX_CANDIDATES = 16  # earlier occurrences compared for the longest common suffix
_MAX_SUFFIX = 32
_FIRST, _LATEST, _COUNT, _AGREES = range(4)


class ContextArrays(NamedTuple):
    """The index as compiled code sees it; axis 0 is n - 3. Positions are those of an n-gram's last token.

    slots: int32 [3, S, 4], open addressing: first position (-1 when free), latest position, count, and
    1 while all occurrences were followed by one token. earlier: int32 [3, C], the previous position of
    the same n-gram, or -1. used: int32 [3], taken slots; S is a power of two.
    """

    slots: NDArray[np.int32]
    earlier: NDArray[np.int32]
    used: NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class ContextMatch:
    """What the context says comes next.

    chain: int32 [<= 20], empty without a match. suffix_len: how many last tokens the copied occurrence
    shares with the sequence (at most 32). num_occurrences: of the longest matching n-gram.
    by_lengths, by_occurrences: the two definitions of consensus, of the paper (section 4.3: two n-gram
    lengths agree on the first token) and of its published code (two or more occurrences of the longest
    matching n-gram, all followed by the same token).
    """

    chain: NDArray[np.int32]
    suffix_len: int
    num_occurrences: int
    by_lengths: bool
    by_occurrences: bool


class ContextIndex:
    """GOOSE's context match (section 4, ContextMatch of appendix B.2), maintained incrementally.

    max_tokens: the most tokens the sequence can ever hold.
    """

    def __init__(self, max_tokens: int) -> None:
        self._num_indexed = 0
        self._arrays = ContextArrays(
            slots=_free_slots(_FIRST_SLOTS),
            earlier=np.empty((_NUM_LENGTHS, max_tokens), np.int32),
            used=np.zeros(_NUM_LENGTHS, np.int32),
        )

    @property
    def arrays(self) -> ContextArrays:
        """The arrays as of now; `extend` may replace them, so do not keep them."""
        return self._arrays

    @property
    def num_bytes(self) -> int:
        return sum(array.nbytes for array in self._arrays)

    def extend(self, tokens: NDArray[np.int32]) -> None:
        """Index what is new in `tokens`, int32 [t]: the same sequence as before, grown at its end."""
        while self._num_indexed < len(tokens) - 1:
            self._num_indexed = _index(self._arrays, tokens, self._num_indexed)
            if self._num_indexed < len(tokens) - 1:
                self._grow(tokens)

    def match(self, tokens: NDArray[np.int32], max_chain: int = MAX_CHAIN) -> ContextMatch:
        """The continuation of the earlier occurrence that shares the longest suffix with `tokens`."""
        chain = np.empty(max_chain, np.int32)
        length, suffix_len, count, by_lengths, by_occurrences = match_end(self._arrays, tokens, chain)
        return ContextMatch(chain[:length], suffix_len, count, by_lengths, by_occurrences)

    def _grow(self, tokens: NDArray[np.int32]) -> None:
        slots = _free_slots(2 * self._arrays.slots.shape[1])
        _rehash(self._arrays.slots, slots, tokens)
        self._arrays = self._arrays._replace(slots=slots)


def _free_slots(num_slots: int) -> NDArray[np.int32]:
    return np.full((_NUM_LENGTHS, num_slots, 4), -1, np.int32)


@nb.njit(cache=True)  # type: ignore[untyped-decorator]
def _home(tokens: NDArray[np.int32], end: int, ngram: int) -> np.uint64:
    mixed = np.uint64(ngram)
    for position in range(end - ngram + 1, end + 1):
        mixed = (mixed ^ np.uint64(tokens[position])) * np.uint64(0x9E3779B97F4A7C15)
        mixed ^= mixed >> np.uint64(32)
    return mixed


@nb.njit(cache=True)  # type: ignore[untyped-decorator]
def _probe(
    slots: NDArray[np.int32], tokens: NDArray[np.int32], query: NDArray[np.int32], end: int, ngram: int
) -> int:
    """The slot of the n-gram that ends at query[end], or the free slot where it belongs.

    tokens is the indexed sequence; query may be the same array or another.
    """
    level = ngram - SHORTEST_NGRAM
    mask = np.uint64(slots.shape[1] - 1)
    slot = _home(query, end, ngram) & mask
    while True:
        first = slots[level, slot, _FIRST]
        if first < 0:
            return int(slot)
        back = 0
        while back < ngram and tokens[first - back] == query[end - back]:
            back += 1
        if back == ngram:
            return int(slot)
        slot = (slot + np.uint64(1)) & mask


@nb.njit(cache=True)  # type: ignore[untyped-decorator]
def _index(index: ContextArrays, tokens: NDArray[np.int32], start: int) -> int:
    """Index n-grams ending at positions start.. that have a successor; stop early when slots run short."""
    for end in range(start, len(tokens) - 1):
        if 2 * index.used.max() >= index.slots.shape[1]:
            return end
        for ngram in range(SHORTEST_NGRAM, min(LONGEST_NGRAM, end + 1) + 1):
            level = ngram - SHORTEST_NGRAM
            record = index.slots[level, _probe(index.slots, tokens, tokens, end, ngram)]
            if record[_FIRST] < 0:
                record[_FIRST], record[_COUNT], record[_AGREES] = end, 0, 1
                index.used[level] += 1
            elif tokens[record[_LATEST] + 1] != tokens[end + 1]:
                record[_AGREES] = 0
            index.earlier[level, end] = record[_LATEST] if record[_COUNT] > 0 else -1
            record[_LATEST] = end
            record[_COUNT] += 1
    return len(tokens) - 1


@nb.njit(cache=True)  # type: ignore[untyped-decorator]
def _rehash(old: NDArray[np.int32], new: NDArray[np.int32], tokens: NDArray[np.int32]) -> None:
    for level in range(_NUM_LENGTHS):
        for slot in range(old.shape[1]):
            first = old[level, slot, _FIRST]
            if first >= 0:
                new[level, _probe(new, tokens, tokens, first, level + SHORTEST_NGRAM)] = old[level, slot]


@nb.njit(cache=True)  # type: ignore[untyped-decorator]
def _common_suffix(tokens: NDArray[np.int32], end: int, query: NDArray[np.int32], query_end: int) -> int:
    length = 0
    while length <= end and length < _MAX_SUFFIX and tokens[end - length] == query[query_end - length]:
        length += 1
    return length


@nb.njit(cache=True)  # type: ignore[untyped-decorator]
def match_end(
    index: ContextArrays, tokens: NDArray[np.int32], chain: NDArray[np.int32]
) -> tuple[int, int, int, bool, bool]:
    """Fill `chain` with the continuation of the best match of the end of `tokens`.

    Returns (chain length, suffix length, occurrences, consensus by lengths, by occurrences). Of the
    occurrences of the longest matching n-gram the one sharing the longest suffix is copied, the most
    recent of equals. A copy that reaches the end of `tokens` goes on with its own beginning.
    """
    end = len(tokens) - 1
    best_end, best_suffix, count, by_occurrences = -1, 0, 0, False
    firsts = np.full(_NUM_LENGTHS, -1, np.int64)
    for ngram in range(min(LONGEST_NGRAM, end), SHORTEST_NGRAM - 1, -1):
        level = ngram - SHORTEST_NGRAM
        record = index.slots[level, _probe(index.slots, tokens, tokens, end, ngram)]
        if record[_FIRST] < 0:
            continue
        firsts[level] = tokens[record[_LATEST] + 1]
        if best_end >= 0:
            continue
        count = record[_COUNT]
        by_occurrences = count > 1 and record[_AGREES] == 1
        candidate = record[_LATEST]
        for _ in range(_MAX_CANDIDATES):
            if candidate < 0:
                break
            suffix = _common_suffix(tokens, candidate, tokens, end)
            if suffix > best_suffix:
                best_end, best_suffix = candidate, suffix
            candidate = index.earlier[level, candidate]
    if best_end < 0:
        return 0, 0, 0, False, False
    agreeing = 0
    for level in range(_NUM_LENGTHS):
        if firsts[level] == tokens[best_end + 1]:
            agreeing += 1
    for position in range(len(chain)):
        source = best_end + 1 + position
        chain[position] = tokens[source] if source <= end else chain[source - end - 1]
    return len(chain), best_suffix, count, agreeing >= 2, by_occurrences


@nb.njit(cache=True)
def match_path(index, tokens, path_tokens, parents, node):
    """Longest-suffix occurrence of the path to `node`: (position of last matched token, suffix length, agrees)."""
    length = len(tokens)
    query = np.empty(_MAX_SUFFIX, np.int32)
    filled = 0
    while node > 0 and filled < _MAX_SUFFIX:
        query[_MAX_SUFFIX - 1 - filled] = path_tokens[node]
        node = parents[node]
        filled += 1
    position = length - 1
    while filled < _MAX_SUFFIX and position >= 0:
        query[_MAX_SUFFIX - 1 - filled] = tokens[position]
        position -= 1
        filled += 1
    end = _MAX_SUFFIX - 1
    for ngram in range(min(LONGEST_NGRAM, filled), SHORTEST_NGRAM - 1, -1):
        level = ngram - SHORTEST_NGRAM
        record = index.slots[level, _probe(index.slots, tokens, query, end, ngram)]
        if record[_FIRST] < 0:
            continue
        candidate = record[_LATEST]
        best_end, best_suffix = -1, 0
        for _ in range(_MAX_CANDIDATES):
            if candidate < 0:
                break
            suffix = 0
            while suffix < filled and suffix <= candidate and tokens[candidate - suffix] == query[end - suffix]:
                suffix += 1
            if suffix > best_suffix:
                best_end, best_suffix = candidate, suffix
            candidate = index.earlier[level, candidate]
        agrees = 1 if record[_COUNT] > 1 and record[_AGREES] == 1 else 0
        return best_end, best_suffix, agrees
    return -1, 0, 0
