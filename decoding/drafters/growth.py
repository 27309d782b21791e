"""Best-first growth of a draft tree from two sources: the request's context and the adjacency table.

Owns the compiled builder. Every candidate has an estimated chance to be accepted; the likeliest is
added until the budget is spent. Invariant: a child's chance is at most its parent's, so parents come first.
"""

from __future__ import annotations

from typing import NamedTuple

import numba as nb
import numpy as np
from numpy.typing import NDArray

from decoding.stores.adjacency import NO_TOKEN, NUM_SUCCESSORS, AdjacencyArrays, find_successors
from decoding.stores.context import ContextArrays, match_path
from decoding.tree import Source

_CONTEXT = int(Source.CONTEXT)
_ADJACENCY = int(Source.ADJACENCY)
_COPY = -1  # the rank of a context candidate; adjacency candidates have ranks 0..9

NUM_CONTEXT_CLASSES = 7 * 4 * 2
NUM_SCORE_CLASSES = 9
NUM_CLASSES = NUM_CONTEXT_CLASSES + 2 * NUM_SCORE_CLASSES


class Nodes(NamedTuple):
    """Buffers for one tree, each [budget + 1]; the builder fills a prefix.

    classes: the evidence class each node was drafted on; positions: where in the context its own
    continuation is copied from (-1: not from context); suffix_lens: length of that match; entries: its
    adjacency entry.
    """

    tokens: NDArray[np.int32]
    parents: NDArray[np.int32]
    sources: NDArray[np.int8]
    depths: NDArray[np.int32]
    classes: NDArray[np.int32]
    chances: NDArray[np.float32]
    positions: NDArray[np.int32]
    suffix_lens: NDArray[np.int32]
    agrees: NDArray[np.int8]
    entries: NDArray[np.int32]
    copy_chances: NDArray[np.float32]


class Frontier(NamedTuple):
    chances: NDArray[np.float32]
    nodes: NDArray[np.int32]
    ranks: NDArray[np.int32]
    size: NDArray[np.int32]


class Limits(NamedTuple):
    budget: int
    max_depth: int
    use_bigram: bool
    use_context: bool
    use_branches: bool
    relook: bool
    min_chance: float


def allocate(budget: int) -> tuple[Nodes, Frontier]:
    n = budget + 1
    i32 = lambda: np.empty(n, np.int32)  # noqa: E731
    nodes = Nodes(i32(), i32(), np.empty(n, np.int8), i32(), i32(), np.empty(n, np.float32), i32(), i32(), np.empty(n, np.int8), i32(), np.empty(n, np.float32))
    m = 3 * n + 3
    return nodes, Frontier(np.empty(m, np.float32), np.empty(m, np.int32), np.empty(m, np.int32), np.zeros(1, np.int32))


@nb.njit(cache=True)
def _push(heap, chance, node, rank):
    slot = heap.size[0]
    heap.size[0] = slot + 1
    while slot > 0:
        up = (slot - 1) >> 1
        if heap.chances[up] >= chance:
            break
        heap.chances[slot] = heap.chances[up]
        heap.nodes[slot] = heap.nodes[up]
        heap.ranks[slot] = heap.ranks[up]
        slot = up
    heap.chances[slot] = chance
    heap.nodes[slot] = node
    heap.ranks[slot] = rank


@nb.njit(cache=True)
def _pop(heap):
    chance, node, rank = heap.chances[0], heap.nodes[0], heap.ranks[0]
    size = heap.size[0] - 1
    heap.size[0] = size
    if size > 0:
        lc, ln, lr = heap.chances[size], heap.nodes[size], heap.ranks[size]
        slot = 0
        while True:
            child = 2 * slot + 1
            if child >= size:
                break
            if child + 1 < size and heap.chances[child + 1] > heap.chances[child]:
                child += 1
            if heap.chances[child] <= lc:
                break
            heap.chances[slot] = heap.chances[child]
            heap.nodes[slot] = heap.nodes[child]
            heap.ranks[slot] = heap.ranks[child]
            slot = child
        heap.chances[slot], heap.nodes[slot], heap.ranks[slot] = lc, ln, lr
    return chance, node, rank


@nb.njit(cache=True)
def suffix_class(length):
    if length <= 5:
        return length - 3
    if length <= 7:
        return 3
    if length <= 11:
        return 4
    if length <= 19:
        return 5
    return 6


@nb.njit(cache=True)
def score_class(score):
    if score >= 0.5:
        return 0 if score >= 0.9 else (1 if score >= 0.75 else 2)
    if score >= 0.07:
        return 3 if score >= 0.3 else (4 if score >= 0.15 else 5)
    return 6 if score >= 0.03 else (7 if score >= 0.01 else 8)


@nb.njit(cache=True)
def _offer_adjacency(table, nodes, heap, beliefs, node, rank, skip, is_bigram):
    """Push the first successor of `node` from `rank` on, leaving out the token copied from context."""
    entry = nodes.entries[node]
    while rank < NUM_SUCCESSORS and table.ids[entry, rank] == skip:
        rank += 1
    if rank >= NUM_SUCCESSORS or table.ids[entry, rank] == NO_TOKEN:
        return
    kind = NUM_CONTEXT_CLASSES + is_bigram * NUM_SCORE_CLASSES + score_class(table.probabilities[entry, rank])
    chance = nodes.chances[node] * (1 - nodes.copy_chances[node]) * beliefs[kind]
    _push(heap, chance, node, rank)


@nb.njit(cache=True)
def _open(table, index, tokens, nodes, heap, beliefs, limits, node):
    """Find what may follow `node` and push its best candidates."""
    token = nodes.tokens[node]
    parent = nodes.parents[node]
    previous = nodes.tokens[parent] if parent >= 0 else (tokens[-2] if len(tokens) > 1 else -1)
    entry, is_bigram = find_successors(table, previous, token, limits.use_bigram)
    nodes.entries[node] = entry
    nodes.copy_chances[node] = 0.0
    skip = -2
    if limits.use_context:
        if nodes.positions[node] < 0 and (node == 0 or limits.relook):
            position, suffix, agrees = match_path(index, tokens, nodes.tokens, nodes.parents, node)
            nodes.positions[node] = position
            nodes.suffix_lens[node] = suffix
            nodes.agrees[node] = agrees
        position = nodes.positions[node]
        if position >= 0 and position + 1 < len(tokens):
            skip = tokens[position + 1]
            agreement = 3
            if entry >= 0:
                agreement = 2
                if table.ids[entry, 0] == skip:
                    agreement = 0
                else:
                    for rank in range(1, NUM_SUCCESSORS):
                        if table.ids[entry, rank] == skip:
                            agreement = 1
            kind = (suffix_class(nodes.suffix_lens[node]) * 4 + agreement) * 2 + nodes.agrees[node]
            nodes.copy_chances[node] = beliefs[kind]
            _push(heap, nodes.chances[node] * beliefs[kind], node, -1 - kind)
    if entry >= 0 and (limits.use_branches or nodes.positions[node] < 0 or node == 0):
        _offer_adjacency(table, nodes, heap, beliefs, node, 0, skip, is_bigram)
    nodes.agrees[node] += 2 * is_bigram


@nb.njit(cache=True)
def grow(table, index, tokens, nodes, heap, beliefs, limits):
    heap.size[0] = 0
    nodes.tokens[0] = tokens[-1]
    nodes.parents[0] = -1
    nodes.sources[0] = 0
    nodes.depths[0] = 0
    nodes.chances[0] = 1.0
    nodes.positions[0] = -1
    nodes.agrees[0] = 0
    nodes.classes[0] = -1
    count = 1
    if limits.budget < 1 or limits.max_depth < 1:
        return count
    _open(table, index, tokens, nodes, heap, beliefs, limits, 0)
    while count <= limits.budget and heap.size[0] > 0:
        chance, parent, rank = _pop(heap)
        if chance < limits.min_chance:
            break
        node = count
        count += 1
        nodes.parents[node] = parent
        nodes.depths[node] = nodes.depths[parent] + 1
        nodes.chances[node] = chance
        if rank < 0:
            nodes.sources[node] = _CONTEXT
            nodes.classes[node] = -1 - rank
            nodes.positions[node] = nodes.positions[parent] + 1
            nodes.tokens[node] = tokens[nodes.positions[node]]
            nodes.suffix_lens[node] = nodes.suffix_lens[parent] + 1
            nodes.agrees[node] = nodes.agrees[parent] & 1
        else:
            entry = nodes.entries[parent]
            is_bigram = nodes.agrees[parent] >> 1
            nodes.sources[node] = _ADJACENCY
            nodes.tokens[node] = table.ids[entry, rank]
            nodes.classes[node] = NUM_CONTEXT_CLASSES + is_bigram * NUM_SCORE_CLASSES + score_class(table.probabilities[entry, rank])
            nodes.positions[node] = -1
            nodes.agrees[node] = 0
            skip = -2
            if nodes.copy_chances[parent] > 0:
                skip = tokens[nodes.positions[parent] + 1]
            _offer_adjacency(table, nodes, heap, beliefs, parent, rank + 1, skip, is_bigram)
        if nodes.depths[node] < limits.max_depth:
            _open(table, index, tokens, nodes, heap, beliefs, limits, node)
    return count
