"""Feeding a step's top tokens back into the n-gram store.

Knows which tokens precede which row: parent links in a tree, never flat order; a prompt is a chain.
"""

from __future__ import annotations

import numba as nb
import numpy as np

from decoding.core.top_tokens import TopTokens
from decoding.core.tree import DraftTree, IntArray, Source, Verdict, chain
from decoding.stores.ngram import LONGEST_NGRAM, NgramStore
from decoding.stores.successor_table import NO_TOKEN


def teach_prompt(ngrams: NgramStore, tokens: IntArray, start: int, top: TopTokens | None) -> None:
    """Harvest a chunk of the prompt: row i of `top` follows position `start + i` of `tokens`."""
    if top is not None:
        text = chain(int(tokens[start]), tokens[start + 1 : start + len(top)], Source.ROOT)
        _teach(ngrams, tokens[: start + 1], text, np.arange(len(top), dtype=np.int32), top)


def teach_tree(ngrams: NgramStore, tokens: IntArray, tree: DraftTree, verdict: Verdict, top: TopTokens | None) -> None:
    """Harvest every row of a verified tree, the rejected ones as less firm; `tokens` ends with the root."""
    if top is not None:
        _teach(ngrams, tokens, tree, verdict.path, top)


def _teach(ngrams: NgramStore, tokens: IntArray, tree: DraftTree, path: IntArray, top: TopTokens) -> None:
    is_firm = np.zeros(len(tree), np.bool_)
    is_firm[path] = True
    ngrams.harvest(contexts_of(tokens, tree.tokens, tree.parents), top.ids, top.probabilities, is_firm)


@nb.njit(cache=True, forceinline=True)
def path_context(tokens: IntArray, node_tokens: IntArray, parents: IntArray, node: int, context: IntArray) -> None:
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
def contexts_of(tokens: IntArray, node_tokens: IntArray, parents: IntArray) -> IntArray:
    """int32 [n, 4]: the last tokens of the path to each node of a tree; `tokens` ends with the root."""
    contexts = np.empty((len(node_tokens), LONGEST_NGRAM), np.int32)
    for node in range(len(node_tokens)):
        path_context(tokens, node_tokens, parents, node, contexts[node])
    return contexts
