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
from decoding.drafting.stand.priors import candidate_class, evidence_of
from decoding.drafting.tree.candidates import Candidates, DraftLaw, allocate_candidates, rank_candidates
from decoding.drafting.tree.frontier import pop, push
from decoding.drafting.tree.growth import Growth
from decoding.drafting.tree.nodes import put_node, put_root
from decoding.stores.ngram import LONGEST_NGRAM, find_longest
from decoding.stores.successor_table import SuccessorArrays

_NGRAM = int(Source.NGRAM)
_NO_SLOT = -1


class NgramBuffers(NamedTuple):
    """What a tree of n nodes asks the store, reused from step to step. evidence int32 [n]: of the entry that gave a
    node's candidates; children int32 [n]: how many of them are nodes; slots int32 [n]: a node's own slot of the static
    tree, or -1. context int32 [4]: the last tokens of the path at hand."""

    candidates: Candidates
    evidence: NDArray[np.int32]
    children: NDArray[np.int32]
    slots: NDArray[np.int32]
    context: NDArray[np.int32]


class NgramSource(NamedTuple):
    """Where candidates come from and in which shape. parents, ranks: int32 [s], the static tree; of the root alone
    where the tree is grown freely. refill: its slots that have no candidate go to the likeliest candidates left."""

    table: SuccessorArrays
    law: DraftLaw
    parents: NDArray[np.int32]
    ranks: NDArray[np.int32]
    refill: bool
    buffers: NgramBuffers


def allocate_ngram_buffers(num_nodes: int) -> NgramBuffers:
    return NgramBuffers(
        candidates=allocate_candidates(num_nodes),
        evidence=np.zeros(num_nodes, np.int32),
        children=np.zeros(num_nodes, np.int32),
        slots=np.zeros(num_nodes, np.int32),
        context=np.zeros(LONGEST_NGRAM, np.int32),
    )


@nb.njit(cache=True)
def fill_tree(growth: Growth, source: NgramSource) -> int:
    """Fill `growth.nodes` within its limits; return how many nodes there are, root included."""
    put_root(growth.nodes, growth.tokens[len(growth.tokens) - 1])
    _reset(source.buffers, 0, 0)
    num_nodes: int = _fill_slots(growth, source)
    if source.refill:
        num_nodes = _grow(growth, source, num_nodes)
    return num_nodes


@nb.njit(cache=True, forceinline=True)
def _reset(buffers: NgramBuffers, node: int, slot: int) -> None:
    buffers.candidates.sizes[node] = -1
    buffers.children[node] = 0
    buffers.slots[node] = slot


@nb.njit(cache=True, forceinline=True)
def _fill_slots(growth: Growth, source: NgramSource) -> int:
    """Take the static tree's slots in order, leaving out those that have no candidate."""
    limits, children = growth.limits, source.buffers.children
    places = np.full(len(source.parents), -1, np.int32)
    places[0] = 0
    num_nodes = 1
    for slot in range(1, min(len(source.parents), limits.max_nodes + 1)):
        parent = places[source.parents[slot]]
        if parent < 0 or growth.nodes.depths[parent] >= limits.max_depth:
            continue
        chance = _next_chance(growth, source, parent)
        if children[parent] == source.ranks[slot] and chance >= limits.min_chance:
            _put_next(growth, source, num_nodes, parent, chance, slot)
            places[slot] = num_nodes
            num_nodes += 1
    return num_nodes


@nb.njit(cache=True, forceinline=True)
def _grow(growth: Growth, source: NgramSource, num_nodes: int) -> int:
    """Spend what is left of the budget on the likeliest next candidate of any node, again and again."""
    limits, heap = growth.limits, growth.heap
    heap[0] = 0
    if num_nodes <= limits.max_nodes:
        for node in range(num_nodes):
            _offer(growth, source, node)
    while num_nodes <= limits.max_nodes and heap[0] > 0:
        chance, parent, _ = pop(heap)
        _put_next(growth, source, num_nodes, parent, chance, _NO_SLOT)
        _offer(growth, source, parent)
        _offer(growth, source, num_nodes)
        num_nodes += 1
    return num_nodes


@nb.njit(cache=True, forceinline=True)
def _offer(growth: Growth, source: NgramSource, node: int) -> None:
    if growth.nodes.depths[node] >= growth.limits.max_depth:
        return
    chance = _next_chance(growth, source, node)
    if chance >= growth.limits.min_chance:
        push(growth.heap, chance, node, source.buffers.children[node])


@nb.njit(cache=True, forceinline=True)
def _next_chance(growth: Growth, source: NgramSource, node: int) -> float:
    """The chance of a node's next candidate, below 0 where there is none; looks the node up the first time."""
    nodes, table, buffers = growth.nodes, source.table, source.buffers
    candidates = buffers.candidates
    if candidates.sizes[node] < 0:
        path_context(growth.tokens, nodes.tokens, nodes.parents, node, buffers.context)
        entry, ngram = find_longest(table, buffers.context)
        position = len(growth.tokens)
        place = (node, position + nodes.depths[node], position)
        rank_candidates(table, entry, source.law, place, candidates)
        if entry >= 0:
            buffers.evidence[node] = evidence_of(table, entry, ngram)
    rank = buffers.children[node]
    if rank >= candidates.sizes[node]:
        return -1.0
    kind = candidate_class(buffers.evidence[node], candidates.weights[node, rank])
    return float(nodes.scores[node] * growth.chances[kind])


@nb.njit(cache=True, forceinline=True)
def _put_next(growth: Growth, source: NgramSource, node: int, parent: int, chance: float, slot: int) -> None:
    """Make the next candidate of `parent` node number `node`."""
    nodes, buffers = growth.nodes, source.buffers
    candidates, rank = buffers.candidates, buffers.children[parent]
    put_node(nodes, node, parent, candidates.ids[parent, rank], _NGRAM, chance)
    nodes.classes[node] = candidate_class(buffers.evidence[parent], candidates.weights[parent, rank])
    buffers.children[parent] = rank + 1
    _reset(buffers, node, slot)
