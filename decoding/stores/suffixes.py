"""Where the end of a sequence occurred before, in any of the sequences kept, and how far back each place matches it.

Owns the tokens and their links in a ring that forgets the oldest. Says what a suffix tree of the same tokens would: a
node is a set of positions, its count how many they are. Knows nothing of trees or of how much is drafted.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from decoding.core.ranking import ranked
from decoding.kernels.numba_kernel import kernel

NOWHERE = -1
MAX_MATCH = 64  # tokens: the depth that Arctic Inference builds its trees to
MOST_COMPARED = 32  # places that are looked at for the longest match
MOST_OCCURRENCES = 4096  # of the last token that are looked at, the latest ones

_MOST_TOKENS = 2**62  # ever, far below what overflows
_FIRST_PLACES = 256
_BYTES_PER_PLACE = 4 + 4 * 8
_BEFORE, _AFTER, _EARLIER = range(3)


class SuffixArrays(NamedTuple):
    """A ring of C places, a power of two; position p, counted from the first token ever, is at place p % C.

    tokens: int32 [C]. links: int64 [C, 3], the positions of the token before and after in its own sequence and of an
    earlier token of the same head, or -1. heads: int64 [C], the latest position of the tokens that are equal modulo C.
    counters: int64 [1], how many tokens there ever were. What is C or more positions back is forgotten.
    """

    tokens: NDArray[np.int32]
    links: NDArray[np.int64]
    heads: NDArray[np.int64]
    counters: NDArray[np.int64]


class Occurrences(NamedTuple):
    """Where a text's end occurs with a token after it: positions int64 [n] of the last matching token, and lengths
    int32 [n], how many of the text's last tokens match there; the longest first."""

    positions: NDArray[np.int64]
    lengths: NDArray[np.int32]


class SuffixIndex:
    """max_bytes bounds the arrays: the index starts small, doubles, then overwrites its oldest tokens. `arrays`: as of
    now; `reserve` may replace them."""

    def __init__(self, max_bytes: int) -> None:
        self._most_places = 1 << max(1, (max_bytes // _BYTES_PER_PLACE).bit_length() - 1)
        self.arrays = _allocate(min(_FIRST_PLACES, self._most_places))

    @property
    def num_bytes(self) -> int:
        return sum(array.nbytes for array in self.arrays)

    def is_sound(self, vocab_size: int) -> bool:
        """Whether nothing in the arrays, which came from outside, could lead a reader astray. Links may point to any
        token there was: readers follow so many at most, and within the ring."""
        tokens, links, heads, _ = self.arrays
        count = int(self.arrays.counters[0])
        return bool(
            0 <= count <= _MOST_TOKENS
            and (count <= len(tokens) or len(tokens) == self._most_places)
            and np.all((tokens >= 0) & (tokens < vocab_size))
            and all(np.all((positions >= NOWHERE) & (positions < count)) for positions in (links, heads))
        )

    def extend(self, tokens: NDArray[np.int32], last: int) -> int:
        """Append `tokens`, int32 [n], to the sequence whose last token is at position `last`, -1 for a new one; the
        position of its last token now."""
        self.reserve(len(tokens))
        return int(append_all(self.arrays, tokens, last))

    def reserve(self, num_tokens: int) -> None:
        """Make room for so many more, if need be that of the oldest."""
        wanted = int(self.arrays.counters[0]) + num_tokens
        num_places = len(self.arrays.tokens)
        while num_places < min(wanted, self._most_places):
            num_places *= 2
        if num_places > len(self.arrays.tokens):
            larger = _allocate(num_places)
            _move(self.arrays, larger)
            self.arrays = larger


def _allocate(num_places: int) -> SuffixArrays:
    return SuffixArrays(
        tokens=np.zeros(num_places, np.int32),
        links=np.full((num_places, 3), NOWHERE, np.int64),
        heads=np.full(num_places, NOWHERE, np.int64),
        counters=np.zeros(1, np.int64),
    )


@kernel(forceinline=True, borrows=True)
def place_of(index: SuffixArrays, position: int) -> int:
    return int(position & (len(index.tokens) - 1))


@kernel(forceinline=True, borrows=True)
def _known(index: SuffixArrays, position: int) -> int:
    """The position, or -1 for one that was overwritten."""
    return position if position >= index.counters[0] - len(index.tokens) else NOWHERE


@kernel(borrows=True)
def _append(index: SuffixArrays, token: int, last: int) -> int:
    position = index.counters[0]
    place, head = place_of(index, position), place_of(index, token)
    index.counters[0] += 1
    last = _known(index, last)
    index.tokens[place] = token
    index.links[place, _BEFORE], index.links[place, _AFTER] = last, NOWHERE
    index.links[place, _EARLIER] = index.heads[head]
    index.heads[head] = position
    if last >= 0:
        index.links[place_of(index, last), _AFTER] = position
    return int(position)


@kernel(borrows=True)
def append_all(index: SuffixArrays, tokens: NDArray[np.int32], last: int) -> int:
    """As `SuffixIndex.extend`, in the room there is."""
    for token in tokens:
        last = _append(index, token, last)
    return last


@kernel(borrows=True)
def _move(old: SuffixArrays, new: SuffixArrays) -> None:
    """Append all that a ring holds to a larger one that is empty."""
    new.counters[0] = max(0, old.counters[0] - len(old.tokens))
    for position in range(new.counters[0], old.counters[0]):
        place = place_of(old, position)
        _append(new, old.tokens[place], _known(old, old.links[place, _BEFORE]))


@kernel(borrows=True)
def next_position(index: SuffixArrays, position: int) -> int:
    """Of the token after the one at `position` in its sequence, -1 for none."""
    return int(index.links[place_of(index, position), _AFTER])


@kernel(borrows=True)
def _match_len(index: SuffixArrays, position: int, text: NDArray[np.int32]) -> int:
    """How many tokens up to and including `position` are the last ones of `text`, at most `MAX_MATCH`."""
    most, length = min(len(text), MAX_MATCH), 0
    while length < most and position >= 0:
        place = place_of(index, position)
        if index.tokens[place] != text[len(text) - 1 - length]:
            break
        length += 1
        position = _known(index, index.links[place, _BEFORE])
    return length


@kernel(borrows=True)
def find_longest(index: SuffixArrays, text: NDArray[np.int32]) -> tuple[int, int]:
    """Of the latest places where the last token of `text`, int32 [t], occurs and goes on, the one that shares most
    tokens with its end, and how many, or -1 and 0; of equal ones the oldest that goes on like most of them (Boyer
    and Moore's vote), since it is there that a run of one token goes on."""
    best, most, came, lead = NOWHERE, 0, 0, 0
    position = _known(index, index.heads[place_of(index, text[len(text) - 1])])
    for _ in range(MOST_COMPARED):
        if position < 0:
            break
        length, after = _match_len(index, position, text), next_position(index, position)
        if after >= 0 and length >= max(most, 1):
            token = index.tokens[place_of(index, after)]
            if length > most or (token != came and lead == 0):
                best, most, came, lead = position, length, token, 1
            elif token == came:
                best, lead = position, lead + 1
            else:
                lead -= 1
        position = _known(index, index.links[place_of(index, position), _EARLIER])
    return best, most


@kernel
def find_occurrences(index: SuffixArrays, text: NDArray[np.int32]) -> Occurrences:
    """Every place where a suffix of `text`, int32 [t], occurs and goes on."""
    positions, lengths = np.empty(MOST_OCCURRENCES, np.int64), np.empty(MOST_OCCURRENCES, np.int32)
    position = _known(index, index.heads[place_of(index, text[len(text) - 1])])
    count = num_seen = 0
    while position >= 0 and num_seen < MOST_OCCURRENCES:
        length = _match_len(index, position, text)
        if length > 0 and next_position(index, position) >= 0:
            positions[count], lengths[count] = position, length
            count += 1
        num_seen += 1
        position = _known(index, index.links[place_of(index, position), _EARLIER])
    order = ranked(lengths[:count])
    return Occurrences(positions[:count][order], lengths[:count][order])
