"""Best-first growth of a draft tree from two sources: the request's context and the adjacency table.

Owns the compiled builder. Each candidate has an estimated chance to be accepted, the product along its
path; the likeliest joins the tree until the budget is spent, so every prefix of the tree is the best of
its size. Invariant: `scores[node]` is that chance, at most the parent's.
"""

from __future__ import annotations

from typing import NamedTuple

import numba as nb
import numpy as np
from numpy.typing import NDArray

from decoding.drafters import frontier
from decoding.drafters.beliefs import POOLED, context_class, score_class
from decoding.drafters.frontier import Frontier, pop, push
from decoding.drafters.nodes import Nodes, put_node, put_root, token_before
from decoding.stores.adjacency import NO_TOKEN, NUM_SUCCESSORS, AdjacencyArrays, find_successors
from decoding.stores.context import MAX_SUFFIX, ContextArrays, find_match
from decoding.tree import Source

_COPY = -1  # rank of the token copied from context; adjacency successors have ranks 0..9
_NO_SKIP = -2  # equals no token
_CONTEXT, _ADJACENCY = int(Source.CONTEXT), int(Source.ADJACENCY)


class Limits(NamedTuple):
    """What the tree may have. consensus: the bit of `decoding.stores.context` that counts."""

    budget: int
    min_chance: float
    max_depth: int
    consensus: int
    use_bigram: bool
    use_context: bool
    use_confidence: bool  # else one rate for all copied tokens
    use_spine_branches: bool


class Evidence(NamedTuple):
    """What is known after each node, arrays [n].

    classes: int32, the evidence class the node was drafted on. positions: int32, the context position the
    node's path matched up to (-1: none); suffix_lens: int32, tokens shared there; consensus: int8.
    entries: int32, its adjacency entry (-1: none); is_bigram: bool. copy_chances: float32, that the copied
    child is accepted.
    """

    classes: NDArray[np.int32]
    positions: NDArray[np.int32]
    suffix_lens: NDArray[np.int32]
    consensus: NDArray[np.int8]
    entries: NDArray[np.int32]
    is_bigram: NDArray[np.bool_]
    copy_chances: NDArray[np.float32]


class Growth(NamedTuple):
    """Everything one tree is grown from and into. tokens: int32 [t], the request's; chances: by class."""

    table: AdjacencyArrays
    context: ContextArrays
    tokens: NDArray[np.int32]
    chances: NDArray[np.float32]
    nodes: Nodes
    evidence: Evidence
    heap: Frontier
    limits: Limits


def allocate_evidence(num_nodes: int) -> Evidence:
    return Evidence(
        classes=np.zeros(num_nodes, np.int32),
        positions=np.zeros(num_nodes, np.int32),
        suffix_lens=np.zeros(num_nodes, np.int32),
        consensus=np.zeros(num_nodes, np.int8),
        entries=np.zeros(num_nodes, np.int32),
        is_bigram=np.zeros(num_nodes, np.bool_),
        copy_chances=np.zeros(num_nodes, np.float32),
    )


def allocate_heap(num_nodes: int) -> Frontier:
    """Room for all candidates of a tree: each node taken out puts at most three in."""
    return frontier.allocate(3 * num_nodes + 3)


@nb.njit(cache=True)
def grow(growth: Growth) -> int:
    """Fill `growth.nodes` with the best tree of at most `budget` drafted nodes; return nodes, root included."""
    limits = growth.limits
    growth.heap.size[0] = 0
    put_root(growth.nodes, growth.tokens[len(growth.tokens) - 1])
    _open(growth, 0, -1)
    num_nodes = 1
    while num_nodes <= limits.budget and growth.heap.size[0] > 0:
        chance, parent, rank = pop(growth.heap)
        if chance < limits.min_chance:
            break
        if rank == _COPY:
            position = growth.evidence.positions[parent] + 1
            put_node(growth.nodes, num_nodes, parent, growth.tokens[position], _CONTEXT, chance)
            growth.evidence.classes[num_nodes] = _copied_class(growth, parent)
        else:
            position = -1
            entry = growth.evidence.entries[parent]
            put_node(growth.nodes, num_nodes, parent, growth.table.ids[entry, rank], _ADJACENCY, chance)
            growth.evidence.classes[num_nodes] = _successor_class(growth, parent, rank)
            _offer_successor(growth, parent, rank + 1)
        _open(growth, num_nodes, position)
        num_nodes += 1
    return num_nodes


@nb.njit(cache=True)
def _open(growth: Growth, node: int, position: int) -> None:
    """Look up what may follow a new node, copied from context `position` or not (-1), and offer the best."""
    nodes, evidence, limits = growth.nodes, growth.evidence, growth.limits
    if nodes.depths[node] >= limits.max_depth:
        return
    before = token_before(nodes, node, growth.tokens)
    entry, is_bigram = find_successors(growth.table, before, nodes.tokens[node], limits.use_bigram)
    evidence.entries[node], evidence.is_bigram[node] = entry, is_bigram
    evidence.copy_chances[node] = 0.0
    _locate(growth, node, position)
    if evidence.positions[node] >= 0:
        chance = growth.chances[_copied_class(growth, node)]
        evidence.copy_chances[node] = chance
        push(growth.heap, nodes.scores[node] * chance, node, _COPY)
        if nodes.sources[node] == _CONTEXT and not limits.use_spine_branches:
            return
    _offer_successor(growth, node, 0)


@nb.njit(cache=True)
def _locate(growth: Growth, node: int, position: int) -> None:
    """Where the context goes on from a node: after the parent's own match, else where its path occurred."""
    evidence, parent = growth.evidence, growth.nodes.parents[node]
    if position >= 0 and position + 1 < len(growth.tokens):
        evidence.positions[node] = position
        evidence.suffix_lens[node] = evidence.suffix_lens[parent] + 1
        evidence.consensus[node] = evidence.consensus[parent]
        return
    evidence.positions[node] = -1
    if growth.limits.use_context:
        path = _last_tokens(growth, node)
        found, suffix_len, _, consensus = find_match(growth.context, growth.tokens, path)
        evidence.positions[node] = found
        evidence.suffix_lens[node] = suffix_len
        evidence.consensus[node] = 1 if consensus & growth.limits.consensus else 0


@nb.njit(cache=True)
def _last_tokens(growth: Growth, node: int) -> NDArray[np.int32]:
    """The last tokens of the path to `node`, at most MAX_SUFFIX, following parent links, then the sequence."""
    path = np.empty(min(MAX_SUFFIX, len(growth.tokens) + growth.nodes.depths[node]), np.int32)
    slot = len(path) - 1
    while node > 0 and slot >= 0:
        path[slot] = growth.nodes.tokens[node]
        node = growth.nodes.parents[node]
        slot -= 1
    last = len(growth.tokens) - 1
    for back in range(slot + 1):
        path[slot - back] = growth.tokens[last - back]
    return path


@nb.njit(cache=True)
def _copied_class(growth: Growth, node: int) -> int:
    """The evidence class of the token copied after `node`."""
    evidence = growth.evidence
    if not growth.limits.use_confidence:
        return POOLED
    copied = growth.tokens[evidence.positions[node] + 1]
    entry = evidence.entries[node]
    agreement = 3
    if entry >= 0:
        agreement = 2
        for rank in range(NUM_SUCCESSORS):
            if growth.table.ids[entry, rank] == copied:
                agreement = 0 if rank == 0 else 1
                break
    return int(context_class(evidence.suffix_lens[node], agreement, evidence.consensus[node] == 1))


@nb.njit(cache=True)
def _successor_class(growth: Growth, node: int, rank: int) -> int:
    entry = growth.evidence.entries[node]
    return int(score_class(growth.table.probabilities[entry, rank], growth.evidence.is_bigram[node]))


@nb.njit(cache=True)
def _offer_successor(growth: Growth, node: int, rank: int) -> None:
    """Offer the first adjacency successor of `node` from `rank` on that is not the copied token."""
    evidence = growth.evidence
    entry = evidence.entries[node]
    if entry < 0:
        return
    copied = _NO_SKIP if evidence.positions[node] < 0 else growth.tokens[evidence.positions[node] + 1]
    while rank < NUM_SUCCESSORS and growth.table.ids[entry, rank] == copied:
        rank += 1
    if rank == NUM_SUCCESSORS or growth.table.ids[entry, rank] == NO_TOKEN:
        return
    chance = growth.chances[_successor_class(growth, node, rank)]
    push(growth.heap, growth.nodes.scores[node] * (1 - evidence.copy_chances[node]) * chance, node, rank)
