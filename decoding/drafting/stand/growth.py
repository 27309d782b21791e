"""Fills STAND's static tree from the n-gram store.

Owns the compiled builder. Invariant: a node's children are its first candidates, none left out, in index order.
"""

from __future__ import annotations

from typing import NamedTuple

import numba as nb
import numpy as np

from decoding.core.tree import IntArray, Source
from decoding.drafting.harvest import path_context
from decoding.drafting.tree.candidates import Candidates, DraftLaw, allocate_candidates, rank_candidates
from decoding.drafting.tree.growth import Limits
from decoding.drafting.tree.nodes import Nodes, allocate, put_node, put_root
from decoding.stores.ngram import LONGEST_NGRAM, find_longest
from decoding.stores.successor_table import SuccessorArrays

_NGRAM = np.int64(Source.NGRAM)


class Filled(NamedTuple):
    """A tree of `num_nodes`, what may follow each, and int32 [n] its own slot of the static tree."""

    nodes: Nodes
    candidates: Candidates
    slots: IntArray
    num_nodes: int


@nb.njit(cache=True)
def fill_tree(
    table: SuccessorArrays, tokens: IntArray, limits: Limits, law: DraftLaw, static: tuple[IntArray, IntArray]
) -> Filled:
    """Take the static tree's slots in order, leaving out those that have no candidate. static: parents and ranks, of
    which a node's lower ones come first."""
    parents, ranks = static
    room = min(len(parents), limits.max_nodes + 1)
    nodes, candidates, slots = allocate(room), allocate_candidates(room), np.zeros(room, np.int32)
    places, context = np.full(room, -1, np.int32), np.empty(LONGEST_NGRAM, np.int32)
    num_nodes = 0
    for slot in range(room):
        if slot == 0:
            put_root(nodes, tokens[len(tokens) - 1])
        else:
            parent, rank = places[parents[slot]], ranks[slot]
            if parent < 0 or nodes.depths[parent] >= limits.max_depth or rank >= candidates.sizes[parent]:
                continue
            put_node(nodes, num_nodes, parent, candidates.ids[parent, rank], _NGRAM, 1.0)
        places[slot], slots[num_nodes] = num_nodes, slot
        path_context(tokens, nodes.tokens, nodes.parents, num_nodes, context)
        entry, _ = find_longest(table, context)
        place = (num_nodes, len(tokens) + nodes.depths[num_nodes], len(tokens))
        rank_candidates(table, entry, law, place, candidates)
        num_nodes += 1
    return Filled(nodes, candidates, slots, num_nodes)
