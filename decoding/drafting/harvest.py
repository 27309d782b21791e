"""Feeding a step's top tokens back into the n-gram store.

Knows which tokens precede which row: positions in a prefill, parent links in a tree, never flat order.
"""

from __future__ import annotations

from collections.abc import Sequence

import numba as nb
import numpy as np
from numpy.typing import NDArray

from decoding.core.top_tokens import TopTokens
from decoding.core.tree import DraftTree, Verdict
from decoding.stores.ngram import LONGEST_NGRAM, NgramStore
from decoding.stores.successor_table import NO_TOKEN


def teach_prompt(ngrams: NgramStore, tokens: NDArray[np.int32], start: int, top: TopTokens | None) -> None:
    """Harvest a chunk of the prompt: row i of `top` follows position `start + i` of `tokens`."""
    if top is not None:
        ngrams.harvest(prompt_contexts(tokens, start, len(top.ids)), top.ids, top.probabilities)


def teach_rows(ngrams: NgramStore, tokens: NDArray[np.int32], rows: Sequence[tuple[int, TopTokens]]) -> None:
    """Harvest what followed some positions of `tokens`, ascending: one row of each."""
    if not rows:
        return
    places = np.array([position for position, _ in rows])
    contexts = prompt_contexts(tokens, int(places[0]), int(places[-1] - places[0]) + 1)[places - places[0]]
    ids, probabilities = [top.ids for _, top in rows], [top.probabilities for _, top in rows]
    ngrams.harvest(contexts, np.concatenate(ids), np.concatenate(probabilities))


def teach_tree(
    ngrams: NgramStore, tokens: NDArray[np.int32], tree: DraftTree, verdict: Verdict, top: TopTokens | None
) -> None:
    """Harvest every row of a verified tree, the rejected ones as less firm; `tokens` ends with the root."""
    if top is None:
        return
    is_accepted = np.zeros(len(tree), np.bool_)
    is_accepted[verdict.path] = True
    ngrams.harvest(tree_contexts(tokens, tree), top.ids, top.probabilities, is_accepted)


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
