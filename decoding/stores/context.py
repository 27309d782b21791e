"""The context index of one request: where the last few tokens, at most 5, occurred before, and what followed.

Owns hash tables over positions; the tokens stay in the request's own array. Knows nothing of trees.
Invariant: an n-gram is indexed only once a token follows it, so every match has a continuation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from decoding.core.picture import tokens_before_pictures
from decoding.kernels.numba_kernel import kernel

LONGEST_NGRAM = 5
SHORTEST_NGRAM = 3  # as GOOSE has it
MAX_CHAIN = 20
MAX_SUFFIX = 32
BY_LENGTHS, BY_OCCURRENCES = 1, 2  # bits of consensus

_FIRST_SLOTS = 256
_MAX_CANDIDATES = 16  # earlier occurrences compared for the longest common suffix
_FIRST, _LATEST, _COUNT, _AGREES = range(4)


class ContextArrays(NamedTuple):
    """The index as compiled code sees it; axis 0 is of the N lengths of n-grams, the last of `LONGEST_NGRAM`. Positions
    are those of an n-gram's last token.

    slots: int32 [N, S, 4], open addressing: first position (-1 when free), latest position, count, and
    1 while all occurrences were followed by one token; S is a power of two. earlier: int32 [N, C], the previous
    position of the same n-gram, or -1. num_indexed: int64 [1], positions from which n-grams are known.
    """

    slots: NDArray[np.int32]
    earlier: NDArray[np.int32]
    num_indexed: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ContextMatch:
    """What the context says comes next.

    chain: int32, the continuation, empty without a match. suffix_len: how many last tokens the copied
    occurrence shares with the sequence (at most 32).
    by_lengths, by_occurrences: the two definitions of consensus, of the paper (section 4.3: two n-gram
    lengths agree on the first token) and of its published code (two or more occurrences of the longest
    matching n-gram, all followed by the same token).
    """

    chain: NDArray[np.int32]
    suffix_len: int
    by_lengths: bool
    by_occurrences: bool


class ContextIndex:
    """GOOSE's context match (section 4, ContextMatch of appendix B.2), maintained incrementally.

    max_tokens: the most tokens the sequence can ever hold; shortest: tokens of a match. `arrays`: as of now; `reserve`
    may replace them.
    """

    def __init__(self, max_tokens: int, shortest: int = SHORTEST_NGRAM) -> None:
        num_lengths = LONGEST_NGRAM - shortest + 1
        self.arrays = ContextArrays(
            slots=_free_slots(num_lengths, _FIRST_SLOTS),
            earlier=np.empty((num_lengths, max_tokens), np.int32),
            num_indexed=np.zeros(1, np.int64),
        )

    @property
    def num_bytes(self) -> int:
        return sum(array.nbytes for array in self.arrays)

    def reserve(self, tokens: NDArray[np.int32]) -> None:
        """Make room for all n-grams of `tokens`, int32 [t]: the same sequence as before, grown at its end."""
        num_lengths, num_slots, _ = self.arrays.slots.shape
        if 2 * len(tokens) > num_slots:
            slots = _free_slots(num_lengths, 1 << (2 * len(tokens)).bit_length())
            _rehash(self.arrays.slots, slots, tokens)
            self.arrays = self.arrays._replace(slots=slots)

    def extend(self, tokens: NDArray[np.int32]) -> None:
        """Index what is new in `tokens`."""
        self.reserve(tokens)
        index_more(self.arrays, tokens)

    def match(self, tokens: NDArray[np.int32], max_chain: int = MAX_CHAIN) -> ContextMatch:
        """How the sequence went on where it shares the longest suffix with its end, the latest of equals.

        A copy that reaches the end of `tokens` goes on with its own beginning: a loop is a loop.
        """
        position, suffix_len, consensus = find_match(self.arrays, tokens, tokens[-MAX_SUFFIX:])
        chain = np.empty(max_chain if position >= 0 else 0, np.int32)
        copy_continuation(tokens, position, chain)
        chain = tokens_before_pictures(chain)
        by_lengths, by_occurrences = bool(consensus & BY_LENGTHS), bool(consensus & BY_OCCURRENCES)
        return ContextMatch(chain, suffix_len, by_lengths, by_occurrences)


def _free_slots(num_lengths: int, num_slots: int) -> NDArray[np.int32]:
    return np.full((num_lengths, num_slots, 4), -1, np.int32)


@kernel(forceinline=True, borrows=True)
def _shortest(slots: NDArray[np.int32]) -> int:
    """The shortest n-grams that are indexed."""
    return LONGEST_NGRAM + 1 - len(slots)


@kernel(borrows=True)
def _home(tokens: NDArray[np.int32], end: int, ngram: int) -> np.uint64:
    mixed = np.uint64(ngram)
    for position in range(end - ngram + 1, end + 1):
        mixed = (mixed ^ np.uint64(tokens[position])) * np.uint64(0x9E3779B97F4A7C15)
        mixed ^= mixed >> np.uint64(32)
    return mixed


@kernel(borrows=True)
def _probe(slots: NDArray[np.int32], tokens: NDArray[np.int32], query: NDArray[np.int32], end: int, ngram: int) -> int:
    """The slot of the n-gram that ends at query[end], or the free slot where it belongs.

    tokens is the indexed sequence; query may be the same array or another.
    """
    level = ngram - _shortest(slots)
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


@kernel(borrows=True)
def index_more(index: ContextArrays, tokens: NDArray[np.int32]) -> None:
    """Index the n-grams of `tokens` that have a successor and are not known yet; there is room for them."""
    shortest = _shortest(index.slots)
    for end in range(index.num_indexed[0], len(tokens) - 1):
        for ngram in range(shortest, min(LONGEST_NGRAM, end + 1) + 1):
            level = ngram - shortest
            record = index.slots[level, _probe(index.slots, tokens, tokens, end, ngram)]
            if record[_FIRST] < 0:
                record[_FIRST], record[_COUNT], record[_AGREES] = end, 0, 1
            elif tokens[record[_LATEST] + 1] != tokens[end + 1]:
                record[_AGREES] = 0
            index.earlier[level, end] = record[_LATEST] if record[_COUNT] > 0 else -1
            record[_LATEST] = end
            record[_COUNT] += 1
    index.num_indexed[0] = max(index.num_indexed[0], len(tokens) - 1)


@kernel(borrows=True)
def _rehash(old: NDArray[np.int32], new: NDArray[np.int32], tokens: NDArray[np.int32]) -> None:
    for level in range(len(old)):
        for slot in range(old.shape[1]):
            first = old[level, slot, _FIRST]
            if first >= 0:
                place = _probe(new, tokens, tokens, first, level + _shortest(old))
                for field in range(old.shape[2]):
                    new[level, place, field] = old[level, slot, field]


@kernel(borrows=True)
def _longest_suffix(
    earlier: NDArray[np.int32], latest: int, tokens: NDArray[np.int32], query: NDArray[np.int32]
) -> tuple[int, int]:
    """Of the occurrences from `latest` back, (position, length) of the one that shares most with the query's end."""
    best, best_len = latest, 0
    candidate = latest
    for _ in range(_MAX_CANDIDATES):
        length = 0
        while (
            length <= candidate and length < len(query) and tokens[candidate - length] == query[len(query) - 1 - length]
        ):
            length += 1
        if length > best_len:
            best, best_len = candidate, length
        candidate = earlier[candidate]
        if candidate < 0:
            break
    return best, best_len


@kernel(borrows=True)
def find_match(index: ContextArrays, tokens: NDArray[np.int32], query: NDArray[np.int32]) -> tuple[int, int, int]:
    """Where the end of `query` occurred before: (last position, shared suffix, consensus bits).

    tokens: int32 [t], the indexed sequence. query: int32 [q], q <= 32 last tokens of any path that
    extends it. Position -1 means no match. By-lengths consensus counts n-gram lengths whose latest
    occurrence is followed by the same token as the match.
    """
    found, found_len, consensus, agreeing = -1, 0, 0, 0
    end = len(query) - 1
    longest, shortest = min(LONGEST_NGRAM, len(query)), _shortest(index.slots)
    if longest < shortest or index.slots[0, _probe(index.slots, tokens, query, end, shortest), _FIRST] < 0:
        return found, found_len, consensus  # what has no match of a few tokens has none of more
    for ngram in range(longest, shortest - 1, -1):
        level = ngram - shortest
        slot = _probe(index.slots, tokens, query, end, ngram)
        latest = index.slots[level, slot, _LATEST]
        if latest < 0:
            continue
        if found < 0:
            found, found_len = _longest_suffix(index.earlier[level], latest, tokens, query)
            if index.slots[level, slot, _COUNT] > 1 and index.slots[level, slot, _AGREES] == 1:
                consensus |= BY_OCCURRENCES
        if tokens[latest + 1] == tokens[found + 1]:
            agreeing += 1
    if agreeing >= 2:
        consensus |= BY_LENGTHS
    return found, found_len, consensus


@kernel(borrows=True)
def copy_continuation(tokens: NDArray[np.int32], position: int, chain: NDArray[np.int32]) -> None:
    """Fill `chain` with what follows `position`, which is before the last token."""
    for step in range(len(chain)):
        source = position + 1 + step
        chain[step] = tokens[source] if source < len(tokens) else chain[source - len(tokens)]
