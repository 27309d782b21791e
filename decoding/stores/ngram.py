"""The n-gram store of STAND: what the target thought came after the last 1 to 4 tokens, averaged over every sight.

Owns its keys, how much a new row counts, and which n-gram answers. The tokens before a row of a tree are those of its
path, by parent links and never by flat order; a prompt is a chain. One table, shared by a session's requests, holds the
four tables of the paper.
Invariant: an entry's probabilities are above zero and sum to at most one.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from decoding.core.top_tokens import TopTokens
from decoding.core.tree import DraftTree, IntArray, Source, Verdict, chain
from decoding.kernels.numba_kernel import kernel
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

LONGEST_NGRAM = 4  # n-grams are the tier n - 1

_FIRST_SETS = 64
_SHORT_MEMORY = 3  # rows: a shorter n-gram than the longest averages as if it had seen no more
_NEWEST_HALVES = 2  # tokens of the longest n-gram in which a new row counts as much as all before it


class NgramStore(SuccessorTable):
    """1- to 4-grams with their top 10 next tokens and mean probabilities (STAND, section 4.1), in `max_bytes`.

    An entry's `seen` counts firm rows for 4-grams, any for shorter ones, where it stops at 3. Shorter n-grams are
    asked where a text is new: there what the target said a moment ago, on whatever path, is worth more than a long
    mean, so all rows count, and the newest for at least a quarter, or in 1- and 2-grams for half.
    """

    def __init__(self, max_bytes: int) -> None:
        super().__init__(max_bytes, _FIRST_SETS)

    def teach_prompt(self, tokens: IntArray, start: int, top: TopTokens | None) -> None:
        """Harvest a chunk of the prompt: row i of `top` follows position `start + i` of `tokens`."""
        if top is not None:
            text = chain(int(tokens[start]), tokens[start + 1 : start + len(top.ids)], Source.ROOT)
            self._teach(tokens[: start + 1], text, np.arange(len(text.tokens), dtype=np.int32), top)

    def teach_tree(self, tokens: IntArray, tree: DraftTree, verdict: Verdict, top: TopTokens | None) -> None:
        """Harvest every row of a verified tree, the rejected ones as less firm; `tokens` ends with the root."""
        if top is not None:
            self._teach(tokens, tree, verdict.path, top)

    def _teach(self, tokens: IntArray, tree: DraftTree, path: IntArray, top: TopTokens) -> None:
        contexts, is_firm = rows_of(tokens, tree.tokens, tree.parents, path)
        self.harvest(contexts, top.ids, top.probabilities, is_firm)

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
        num_new = LONGEST_NGRAM * len(contexts)
        if sum(self.num_entries) + num_new > self.most_used:
            self.reserve(num_new)
        if is_firm is None:
            is_firm = np.ones(len(contexts), np.bool_)
        harvest_rows(self.arrays, contexts, top_ids, top_probabilities, is_firm)

    def check_integrity(self) -> None:
        """Raise AssertionError unless counts, bounds and every entry's order and sum hold."""
        super().check_integrity()
        assert np.all((self.arrays.ids == NO_TOKEN) == (self.arrays.probabilities == 0)), "a successor of no weight"
        assert np.all(self.arrays.probabilities.sum(axis=1) < 1 + 1e-4), "more than all"


@kernel(forceinline=True, borrows=True)
def path_context(tokens: IntArray, node_tokens: IntArray, parents: IntArray, node: int, context: IntArray) -> None:
    """Write the last tokens of the path to `node` into `context`, oldest first, -1 before the sequence's start and
    for what is no token."""
    slot = len(context) - 1
    while node > 0 and slot >= 0:
        context[slot] = max(node_tokens[node], NO_TOKEN)
        node = parents[node]
        slot -= 1
    last = len(tokens) - 1 - slot
    while slot >= 0:
        context[slot] = max(tokens[last + slot], NO_TOKEN) if last + slot >= 0 else NO_TOKEN
        slot -= 1


@kernel
def rows_of(
    tokens: IntArray, node_tokens: IntArray, parents: IntArray, path: IntArray
) -> tuple[IntArray, NDArray[np.bool_]]:
    """Of each node of a tree the last tokens of the path to it, int32 [n, 4], and whether it is on the accepted path,
    bool [n]; `tokens` ends with the root."""
    contexts = np.empty((len(node_tokens), LONGEST_NGRAM), np.int32)
    for node in range(len(node_tokens)):
        path_context(tokens, node_tokens, parents, node, contexts[node])
    is_firm = np.zeros(len(node_tokens), np.bool_)
    is_firm[path] = True
    return contexts, is_firm


@kernel(forceinline=True, borrows=True)
def _hash_on(mixed: np.uint64, token: int) -> np.uint64:
    return np.uint64(mix(mixed ^ np.uint64(token + 1)))


@kernel(forceinline=True, borrows=True)
def find_successors(table: SuccessorArrays, previous: int, token: int, use_bigram: bool = True) -> tuple[int, int]:
    """The entry of (previous, token) and its tier: the two of them (1) first, the token alone (0) else; -1 for neither.
    previous: -1 for none."""
    single = _hash_on(np.uint64(0), token)
    if use_bigram and previous >= 0:
        entry: int = look_up(table, key_of(_hash_on(single, previous), 1))
        if entry >= 0:
            return entry, 1
    return look_up(table, key_of(single, 0)), 0


@kernel
def harvest_rows(
    table: SuccessorArrays,
    contexts: NDArray[np.int32],
    top_ids: NDArray[np.int32],
    top_probabilities: NDArray[np.float32],
    is_firm: NDArray[np.bool_],
) -> None:
    """As `NgramStore.harvest`, into a table that has room."""
    merged = allocate_merged()
    for row in range(len(contexts)):
        if not np.isfinite(top_probabilities[row, 0]):  # a rejected row of broken logits: it says nothing
            continue
        mixed = np.uint64(0)
        for ngram in range(1, LONGEST_NGRAM + 1):
            token = contexts[row, LONGEST_NGRAM - ngram]
            if token == NO_TOKEN:
                break
            mixed = _hash_on(mixed, token)
            entry, is_new = find_or_claim(table, key_of(mixed, ngram - 1))
            if is_new:
                table.seen[entry] = 0
            elif ngram == LONGEST_NGRAM and table.seen[entry] > 0 and not is_firm[row]:
                continue
            seen = table.seen[entry] if ngram > _NEWEST_HALVES else min(table.seen[entry], 1)
            share = np.float32(1.0 / (seen + 1))  # k rows' mean moves by 1 / (k + 1)
            blend(table, entry, top_ids[row], top_probabilities[row], share, merged)
            if ngram == LONGEST_NGRAM:
                table.seen[entry] += is_firm[row]
            else:
                table.seen[entry] = min(table.seen[entry] + 1, _SHORT_MEMORY)


@kernel(forceinline=True, borrows=True)
def find_longest(table: SuccessorArrays, context: NDArray[np.int32], shortest: int = 1) -> tuple[int, int]:
    """The entry of the longest n-gram known and its n, at least `shortest`, or (-1, 0); context: int32 [4] as in
    `harvest`."""
    for ngram in range(LONGEST_NGRAM, shortest - 1, -1):
        if context[LONGEST_NGRAM - ngram] == NO_TOKEN:
            continue
        mixed = np.uint64(0)
        for back in range(1, ngram + 1):
            mixed = _hash_on(mixed, context[LONGEST_NGRAM - back])
        entry: int = look_up(table, key_of(mixed, ngram - 1))
        if entry >= 0:
            return entry, ngram
    return -1, 0
