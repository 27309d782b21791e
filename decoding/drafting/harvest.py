"""Feeding a step's top tokens back into the stores: the adjacency table, the n-gram store, and both whoever drafts.

Knows which tokens precede which row: positions in a prefill, parent links in a tree, never flat order.
"""

from __future__ import annotations

import numba as nb
import numpy as np
from numpy.typing import NDArray

from decoding.core.request import Request
from decoding.core.top_tokens import TopTokens
from decoding.core.tree import DraftTree, Verdict
from decoding.drafting.sources import DraftingStores
from decoding.stores.adjacency import AdjacencyTable
from decoding.stores.earnings import Promise
from decoding.stores.ngram import LONGEST_NGRAM, NgramStore
from decoding.stores.successor_table import NO_TOKEN, NUM_SUCCESSORS


def harvest_prefill(table: AdjacencyTable, request: Request, start: int, top: TopTokens | None) -> None:
    """Learn from rows that follow positions `start`.. of the request."""
    if top is None:
        return
    end = start + len(top.ids)
    tokens = request.tokens
    previous = np.full(len(top.ids), NO_TOKEN, np.int32)
    skipped = 1 if start == 0 else 0  # the first token of all has none before it
    previous[skipped:] = tokens[start + skipped - 1 : end - 1]
    table.harvest(previous, tokens[start:end], top.ids, top.probabilities)


def harvest_tree(table: AdjacencyTable, before_root: int, tree: DraftTree, top: TopTokens | None) -> None:
    """Learn from every row of a verified tree; before_root: the token before the root, -1 for none."""
    if top is None:
        return
    previous = tree.tokens[tree.parents]
    previous[0] = before_root
    table.harvest(previous, tree.tokens, top.ids, top.probabilities)


def token_before_root(request: Request) -> int:
    tokens = request.tokens
    return int(tokens[-2]) if len(tokens) > 1 else NO_TOKEN


def teach_prompt(ngrams: NgramStore, tokens: NDArray[np.int32], start: int, top: TopTokens | None) -> None:
    """Harvest a chunk of the prompt: row i of `top` follows position `start + i` of `tokens`."""
    if top is not None:
        ngrams.harvest(prompt_contexts(tokens, start, len(top.ids)), top.ids, top.probabilities)


def teach_tree(
    ngrams: NgramStore, tokens: NDArray[np.int32], tree: DraftTree, verdict: Verdict, top: TopTokens | None
) -> int:
    """Harvest every row of a verified tree, the rejected ones as less firm; `tokens` ends with the root.

    Returns how many of the verdict's tokens the store had thought likeliest.
    """
    if top is None:
        return 0
    contexts = tree_contexts(tokens, tree)
    num_foretold = ngrams.num_foretold(contexts[verdict.path], verdict.tokens)
    is_accepted = np.zeros(len(tree), np.bool_)
    is_accepted[verdict.path] = True
    ngrams.harvest(contexts, top.ids, top.probabilities, is_accepted)
    return num_foretold


def prompt_contexts(tokens: NDArray[np.int32], start: int, num_rows: int) -> NDArray[np.int32]:
    """int32 [num_rows, 4]: the last tokens up to each of the positions `start`.. of a sequence, oldest first."""
    padded = np.concatenate((np.full(LONGEST_NGRAM - 1, NO_TOKEN, np.int32), tokens[: start + num_rows]))
    windows = np.lib.stride_tricks.sliding_window_view(padded, LONGEST_NGRAM)[start:]
    return np.array(windows, order="C")  # a view's layout depends on its length, and each one is compiled anew


def tree_contexts(tokens: NDArray[np.int32], tree: DraftTree) -> NDArray[np.int32]:
    """int32 [n, 4]: the last tokens of the path to each node; `tokens` ends with the root."""
    contexts = np.empty((len(tree), LONGEST_NGRAM), np.int32)
    _fill_contexts(tokens, tree.tokens, tree.parents, contexts)
    return contexts


@nb.njit(cache=True, forceinline=True)
def path_context(
    tokens: NDArray[np.int32],
    node_tokens: NDArray[np.int32],
    parents: NDArray[np.int32],
    node: int,
    context: NDArray[np.int32],
) -> None:
    """Write the last tokens of the path to `node` into `context`, oldest first, -1 before the sequence's start."""
    slot = len(context) - 1
    while node > 0 and slot >= 0:
        context[slot] = node_tokens[node]
        node = parents[node]
        slot -= 1
    last = len(tokens) - 1 - slot
    while slot >= 0:
        context[slot] = tokens[last + slot] if last + slot >= 0 else NO_TOKEN
        slot -= 1


@nb.njit(cache=True)
def _fill_contexts(
    tokens: NDArray[np.int32],
    node_tokens: NDArray[np.int32],
    parents: NDArray[np.int32],
    contexts: NDArray[np.int32],
) -> None:
    for node in range(len(node_tokens)):
        path_context(tokens, node_tokens, parents, node, contexts[node])


class Teacher:
    """One request's. promise: of the n-gram store, written here; with_adjacency: where the method does not harvest."""

    num_top = NUM_SUCCESSORS

    def __init__(self, request: Request, stores: DraftingStores, promise: Promise, with_adjacency: bool) -> None:
        self._request = request
        self._ngrams = stores.ngrams
        self._adjacency = stores.adjacency if with_adjacency else None
        self._promise = promise
        self._num_tokens = 0
        self._before_root = -1

    def observe_prefill(self, start: int, top: TopTokens | None) -> None:
        teach_prompt(self._ngrams, self._request.tokens, start, top)
        if self._adjacency is not None:
            harvest_prefill(self._adjacency, self._request, start, top)

    def begin(self) -> None:
        """A tree is about to be proposed at the last token."""
        self._num_tokens = self._request.num_tokens
        self._before_root = token_before_root(self._request)

    def observe(self, tree: DraftTree, verdict: Verdict, top: TopTokens | None) -> None:
        num_foretold = teach_tree(self._ngrams, self._request.tokens[: self._num_tokens], tree, verdict, top)
        if self._adjacency is not None:
            harvest_tree(self._adjacency, self._before_root, tree, top)
        self._promise.note(num_foretold, len(verdict.tokens))
