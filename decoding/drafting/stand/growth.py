"""Fills STAND's static tree from the n-gram store.

Owns the compiled builder. Invariant: a node's children are its first candidates, none left out, in index order.
"""

from __future__ import annotations

from typing import NamedTuple

import numba as nb
import numpy as np
from numpy.typing import NDArray

from decoding.core.tree import Source
from decoding.drafting.harvest import path_context
from decoding.drafting.tree.candidates import Candidates, DraftLaw, allocate_candidates, rank_candidates
from decoding.drafting.tree.growth import Limits
from decoding.drafting.tree.nodes import Nodes, put_node, put_root
from decoding.stores.ngram import LONGEST_NGRAM, find_longest
from decoding.stores.successor_table import SuccessorArrays

_NGRAM = int(Source.NGRAM)


class StaticFill(NamedTuple):
    """What a tree of n nodes is filled from and into, reused from step to step. parents, ranks: int32 [s], the static
    tree; slots: int32 [n], a node's own of it; context: int32 [4], the last tokens of the path at hand."""

    table: SuccessorArrays
    law: DraftLaw
    parents: NDArray[np.int32]
    ranks: NDArray[np.int32]
    candidates: Candidates
    slots: NDArray[np.int32]
    context: NDArray[np.int32]


def allocate_fill(num_nodes: int) -> tuple[Candidates, NDArray[np.int32], NDArray[np.int32]]:
    """The last three fields of a `StaticFill`."""
    return allocate_candidates(num_nodes), np.zeros(num_nodes, np.int32), np.zeros(LONGEST_NGRAM, np.int32)


@nb.njit(cache=True)
def fill_tree(tokens: NDArray[np.int32], limits: Limits, nodes: Nodes, fill: StaticFill) -> int:
    """Take the static tree's slots in order, leaving out those that have no candidate; how many nodes there are."""
    put_root(nodes, tokens[len(tokens) - 1])
    places = np.full(len(fill.parents), -1, np.int32)
    children = np.zeros(len(fill.parents), np.int32)
    places[0] = 0
    _look_up(tokens, nodes, fill, 0)
    num_nodes = 1
    for slot in range(1, min(len(fill.parents), limits.max_nodes + 1)):
        parent = places[fill.parents[slot]]
        if parent < 0 or nodes.depths[parent] >= limits.max_depth:
            continue
        rank = fill.ranks[slot]
        if children[parent] == rank and rank < fill.candidates.sizes[parent]:
            put_node(nodes, num_nodes, parent, fill.candidates.ids[parent, rank], _NGRAM, 1.0)
            children[parent] += 1
            fill.slots[num_nodes] = slot
            places[slot] = num_nodes
            _look_up(tokens, nodes, fill, num_nodes)
            num_nodes += 1
    return num_nodes


@nb.njit(cache=True, forceinline=True)
def _look_up(tokens: NDArray[np.int32], nodes: Nodes, fill: StaticFill, node: int) -> None:
    """The candidates that may follow a node."""
    path_context(tokens, nodes.tokens, nodes.parents, node, fill.context)
    entry, _ = find_longest(fill.table, fill.context)
    position = len(tokens)
    rank_candidates(fill.table, entry, fill.law, (node, position + nodes.depths[node], position), fill.candidates)
