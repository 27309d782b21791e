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
from decoding.drafting.tree.nodes import Nodes, allocate, put_node, put_root
from decoding.stores.ngram import LONGEST_NGRAM, find_longest
from decoding.stores.successor_table import SuccessorArrays

_NGRAM = np.int64(Source.NGRAM)


class Filled(NamedTuple):
    """Room for a tree of n nodes, reused from step to step. slots: int32 [n], a node's own of the static tree; context:
    int32 [4], the last tokens of the path at hand."""

    nodes: Nodes
    candidates: Candidates
    slots: NDArray[np.int32]
    context: NDArray[np.int32]


class StaticSource(NamedTuple):
    """What a tree is filled from, and along which: parents, ranks: int32 [s], the static tree."""

    table: SuccessorArrays
    law: DraftLaw
    parents: NDArray[np.int32]
    ranks: NDArray[np.int32]


def allocate_filled(num_nodes: int) -> Filled:
    slots, context = np.zeros(num_nodes, np.int32), np.zeros(LONGEST_NGRAM, np.int32)
    return Filled(allocate(num_nodes), allocate_candidates(num_nodes), slots, context)


@nb.njit(cache=True)
def fill_tree(tokens: NDArray[np.int32], limits: Limits, source: StaticSource, filled: Filled) -> int:
    """Take the static tree's slots in order, leaving out those that have no candidate; how many nodes there are."""
    nodes, candidates = filled.nodes, filled.candidates
    put_root(nodes, tokens[len(tokens) - 1])
    places = np.full(len(source.parents), -1, np.int32)
    children = np.zeros(len(source.parents), np.int32)
    places[0] = 0
    _look_up(tokens, source, filled, np.int64(0))
    num_nodes = 1
    for slot in range(1, min(len(source.parents), limits.max_nodes + 1)):
        parent = places[source.parents[slot]]
        if parent < 0 or nodes.depths[parent] >= limits.max_depth:
            continue
        rank = source.ranks[slot]
        if children[parent] == rank and rank < candidates.sizes[parent]:
            put_node(nodes, num_nodes, parent, candidates.ids[parent, rank], _NGRAM, 1.0)
            children[parent] += 1
            filled.slots[num_nodes] = slot
            places[slot] = num_nodes
            _look_up(tokens, source, filled, num_nodes)
            num_nodes += 1
    return num_nodes


@nb.njit(cache=True, forceinline=True)
def _look_up(tokens: NDArray[np.int32], source: StaticSource, filled: Filled, node: int) -> None:
    """The candidates that may follow a node."""
    nodes, root_position = filled.nodes, len(tokens)
    path_context(tokens, nodes.tokens, nodes.parents, node, filled.context)
    entry, _ = find_longest(source.table, filled.context)
    place = (node, root_position + nodes.depths[node], root_position)
    rank_candidates(source.table, entry, source.law, place, filled.candidates)
