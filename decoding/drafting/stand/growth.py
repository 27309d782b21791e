"""Fills a draft tree from the n-gram store: along a static tree, best-first, or one after the other.

Owns the compiled builder. Each node's chance is the product along its path of what its evidence class has
proved to be worth. Invariant: a node's children are its first candidates, none left out, in index order.
"""

from __future__ import annotations

from typing import NamedTuple

import numba as nb
import numpy as np
from numpy.typing import NDArray

from decoding.core.tree import Source
from decoding.drafting.harvest import path_context
from decoding.drafting.tree import frontier
from decoding.drafting.tree.candidates import (
    Candidates,
    DraftLaw,
    allocate_candidates,
    candidate_class,
    evidence_of,
    rank_candidates,
)
from decoding.drafting.tree.frontier import pop, push
from decoding.drafting.tree.nodes import Nodes, put_node, put_root
from decoding.drafting.tree.nodes import allocate as allocate_nodes
from decoding.stores.ngram import LONGEST_NGRAM, find_longest
from decoding.stores.successor_table import SuccessorArrays

_NGRAM = int(Source.NGRAM)
_NO_SLOT = -1


class Limits(NamedTuple):
    """budget: drafted nodes; max_depth: edges from the root; min_chance: of a node to be accepted.

    refill: slots of the static tree that have no candidate go to the likeliest candidates left.
    """

    budget: int
    max_depth: int
    min_chance: float
    refill: bool


class Buffers(NamedTuple):
    """Room for one tree of n nodes, reused from step to step. heap: `frontier`'s. classes int32 [n]: each node's
    evidence class;
    children int32 [n]: how many it has; slots int32 [n]: its slot of the static tree, or -1. context int32 [4]:
    the last tokens of the path at hand."""

    nodes: Nodes
    candidates: Candidates
    heap: NDArray[np.int64]
    classes: NDArray[np.int32]
    children: NDArray[np.int32]
    slots: NDArray[np.int32]
    context: NDArray[np.int32]


class Draft(NamedTuple):
    """Everything one tree is drafted from and into. tokens: int32 [t], the request's; chances: by class.

    parents, ranks: int32 [s], the static tree; of the root alone where the tree is grown freely.
    """

    table: SuccessorArrays
    tokens: NDArray[np.int32]
    law: DraftLaw
    chances: NDArray[np.float32]
    buffers: Buffers
    limits: Limits
    parents: NDArray[np.int32]
    ranks: NDArray[np.int32]


def allocate(num_nodes: int) -> Buffers:
    return Buffers(
        nodes=allocate_nodes(num_nodes),
        candidates=allocate_candidates(num_nodes),
        heap=frontier.allocate(2 * num_nodes + 2),
        classes=np.zeros(num_nodes, np.int32),
        children=np.zeros(num_nodes, np.int32),
        slots=np.zeros(num_nodes, np.int32),
        context=np.zeros(LONGEST_NGRAM, np.int32),
    )


@nb.njit(cache=True)
def fill_tree(draft: Draft) -> int:
    """Fill `draft.buffers.nodes` with at most `budget` drafted nodes; return how many there are, root included."""
    put_root(draft.buffers.nodes, draft.tokens[len(draft.tokens) - 1])
    _reset(draft.buffers, 0, 0)
    num_nodes: int = _fill_slots(draft)
    if draft.limits.refill:
        num_nodes = _grow(draft, num_nodes)
    return num_nodes


@nb.njit(cache=True, forceinline=True)
def _reset(buffers: Buffers, node: int, slot: int) -> None:
    buffers.candidates.sizes[node] = -1
    buffers.children[node] = 0
    buffers.slots[node] = slot


@nb.njit(cache=True, forceinline=True)
def _fill_slots(draft: Draft) -> int:
    """Take the static tree's slots in order, leaving out those that have no candidate."""
    buffers, limits = draft.buffers, draft.limits
    places = np.full(len(draft.parents), -1, np.int32)
    places[0] = 0
    num_nodes = 1
    for slot in range(1, min(len(draft.parents), limits.budget + 1)):
        parent = places[draft.parents[slot]]
        if parent < 0 or buffers.nodes.depths[parent] >= limits.max_depth:
            continue
        chance = _next_chance(draft, parent)
        if buffers.children[parent] == draft.ranks[slot] and chance >= limits.min_chance:
            _put_next(draft, num_nodes, parent, chance, slot)
            places[slot] = num_nodes
            num_nodes += 1
    return num_nodes


@nb.njit(cache=True, forceinline=True)
def _grow(draft: Draft, num_nodes: int) -> int:
    """Spend what is left of the budget on the likeliest next candidate of any node, again and again."""
    buffers, limits = draft.buffers, draft.limits
    heap = buffers.heap
    heap[0] = 0
    if num_nodes <= limits.budget:
        for node in range(num_nodes):
            _offer(draft, node)
    while num_nodes <= limits.budget and heap[0] > 0:
        chance, parent, _ = pop(heap)
        _put_next(draft, num_nodes, parent, chance, _NO_SLOT)
        _offer(draft, parent)
        _offer(draft, num_nodes)
        num_nodes += 1
    return num_nodes


@nb.njit(cache=True, forceinline=True)
def _offer(draft: Draft, node: int) -> None:
    if draft.buffers.nodes.depths[node] >= draft.limits.max_depth:
        return
    chance = _next_chance(draft, node)
    if chance >= draft.limits.min_chance:
        push(draft.buffers.heap, chance, node, draft.buffers.children[node])


@nb.njit(cache=True, forceinline=True)
def _next_chance(draft: Draft, node: int) -> float:
    """The chance of a node's next candidate, below 0 where there is none; looks the node up the first time."""
    buffers = draft.buffers
    candidates, nodes = buffers.candidates, buffers.nodes
    if candidates.sizes[node] < 0:
        path_context(draft.tokens, nodes.tokens, nodes.parents, node, buffers.context)
        entry, ngram = find_longest(draft.table, buffers.context)
        position = len(draft.tokens)
        place = (node, position + nodes.depths[node], position)
        rank_candidates(draft.table, entry, draft.law, place, candidates)
        if entry >= 0:
            candidates.evidence[node] = evidence_of(draft.table, entry, ngram)
    rank = buffers.children[node]
    if rank >= candidates.sizes[node]:
        return -1.0
    kind = candidate_class(candidates.evidence[node], candidates.weights[node, rank])
    return float(nodes.scores[node] * draft.chances[kind])


@nb.njit(cache=True, forceinline=True)
def _put_next(draft: Draft, node: int, parent: int, chance: float, slot: int) -> None:
    """Make the next candidate of `parent` node number `node`."""
    buffers = draft.buffers
    candidates = buffers.candidates
    rank = buffers.children[parent]
    put_node(buffers.nodes, node, parent, candidates.ids[parent, rank], _NGRAM, chance)
    buffers.classes[node] = candidate_class(candidates.evidence[parent], candidates.weights[parent, rank])
    buffers.children[parent] = rank + 1
    _reset(buffers, node, slot)
