"""The adjacency table: the most likely successors of a token, and of a pair of tokens, seen in logits.

Owns its two tiers of keys, how much a new row counts, and which tier answers. Knows nothing of trees: the caller says
which token precedes which. One table, shared by a session's requests, holds both tiers.
"""

from __future__ import annotations

import numba as nb
import numpy as np
from numpy.typing import NDArray

from decoding.stores.blend import allocate_merged, blend
from decoding.stores.successor_table import (
    NO_TOKEN,
    SuccessorArrays,
    SuccessorTable,
    find_or_claim,
    key_of,
    look_up,
    mix,
)

_FIRST_SETS = 32
_NEW_SHARE = 0.5  # of an entry's average: a new row counts as much as all before it
_UNIGRAM, _BIGRAM = 0, 1  # tiers


class AdjacencyTable(SuccessorTable):
    """Two tiers, bigram and unigram, of top-10 successors (GOOSE, section 4.1 and appendix C.1), in `max_bytes`."""

    def __init__(self, max_bytes: int) -> None:
        super().__init__(max_bytes, _FIRST_SETS, counts_rows=False)

    @property
    def num_unigrams(self) -> int:
        return self.num_entries[_UNIGRAM]

    @property
    def num_bigrams(self) -> int:
        return self.num_entries[_BIGRAM]

    @property
    def lookups(self) -> tuple[int, int, int]:
        """How many look-ups the bigram tier, the unigram tier and neither answered."""
        return self.num_found[_BIGRAM], self.num_found[_UNIGRAM], self.num_missed[_UNIGRAM]

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
        self.reserve(2 * len(tokens))
        ids = np.ascontiguousarray(top_ids, np.int32)  # another layout would be compiled for anew
        _harvest(self._arrays, previous, tokens, ids, np.ascontiguousarray(top_probabilities, np.float32))

    def successors(self, previous: int, token: int) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """Successor tokens and probabilities after (previous, token), most likely first; maybe none."""
        entry, _ = find_successors(self._arrays, previous, token, True)
        return self.successors_of(entry)


@nb.njit(cache=True, forceinline=True)
def _pair_key(previous: int, token: int) -> np.uint64:
    """The bigram tier's key; previous -1 gives the unigram tier's."""
    pair = (np.uint64(previous + 1) << np.uint64(32)) | np.uint64(token)
    return np.uint64(key_of(mix(pair), _UNIGRAM if previous == NO_TOKEN else _BIGRAM))


@nb.njit(cache=True)
def _harvest(
    table: SuccessorArrays,
    previous: NDArray[np.int32],
    tokens: NDArray[np.int32],
    top_ids: NDArray[np.int32],
    top_probabilities: NDArray[np.float32],
) -> None:
    merged = allocate_merged()
    for row in range(len(tokens)):
        for tier in range(2):
            before = previous[row] if tier == _BIGRAM else NO_TOKEN
            if tier == _BIGRAM and before < 0:
                continue
            entry, is_new = find_or_claim(table, _pair_key(before, tokens[row]))
            share = np.float32(1.0 if is_new else _NEW_SHARE)
            blend(table, entry, top_ids[row], top_probabilities[row], share, merged)


@nb.njit(cache=True)
def find_successors(table: SuccessorArrays, previous: int, token: int, use_bigram: bool) -> tuple[int, int]:
    """The entry for (previous, token) and its tier: bigram (1) first, unigram (0) as fallback, -1 for neither."""
    if use_bigram and previous >= 0:
        entry: int = look_up(table, _pair_key(previous, token))
        if entry >= 0:
            return entry, _BIGRAM
    return look_up(table, _pair_key(NO_TOKEN, token)), _UNIGRAM
