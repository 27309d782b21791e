"""Feeding a step's logits back into the adjacency table.

Knows which token precedes which row: positions in a prefill, parent links in a tree, never flat order.
"""

from __future__ import annotations

import numpy as np

from decoding.drafters.base import TopTokens
from decoding.request import Request
from decoding.stores.adjacency import NO_TOKEN, AdjacencyTable
from decoding.tree import DraftTree


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
