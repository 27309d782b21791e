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

from decoding.core.tree import Source
from decoding.drafting.tree import frontier
from decoding.drafting.tree.beliefs import POOLED, context_class, score_class
from decoding.drafting.tree.frontier import pop, push
from decoding.drafting.tree.nodes import Nodes, put_node, put_root, token_before
from decoding.stores.adjacency import find_successors
from decoding.stores.context import MAX_SUFFIX, ContextArrays, find_match
from decoding.stores.successor_table import NO_TOKEN, NUM_SUCCESSORS, SuccessorArrays

_COPY = NUM_SUCCESSORS  # rank of the token copied from context; adjacency successors have ranks 0..9
_NO_TOKEN_TO_SKIP = -2
_CONTEXT, _ADJACENCY = int(Source.CONTEXT), int(Source.ADJACENCY)

# What is known after a node. kind: the evidence class it was drafted on; position: the context position its
# path matched up to (-1: none); suffix_len: tokens shared there; entry: its adjacency entry (-1: none).
EVIDENCE = np.dtype([
    ("kind", np.int32), ("position", np.int32), ("suffix_len", np.int32), ("has_consensus", np.int32),
    ("entry", np.int32), ("is_bigram", np.int32),
])  # fmt: skip


class Limits(NamedTuple):
    """What the tree may have. min_chance: no node below it; consensus: the bit of it that counts."""

    budget: int
    min_chance: float
    max_depth: int
    consensus: int
    use_bigram: bool
    use_context: bool
    use_confidence: bool  # else one rate for all copied tokens
    use_spine_branches: bool


class Growth(NamedTuple):
    """Everything one tree is grown from and into.

    tokens: int32 [t], the request's; chances: float32, by evidence class; evidence: EVIDENCE [budget + 1];
    scales: float32 [budget + 1], what remains of a node's chance for successors; heap: `frontier`'s.
    """

    table: SuccessorArrays
    context: ContextArrays
    tokens: NDArray[np.int32]
    chances: NDArray[np.float32]
    nodes: Nodes
    evidence: NDArray[np.void]
    scales: NDArray[np.float32]
    heap: NDArray[np.int64]
    limits: Limits


def allocate_heap(num_nodes: int) -> NDArray[np.int64]:
    """Room for all candidates of a tree: each node taken out puts at most three in."""
    return frontier.allocate(3 * num_nodes + 3)


@nb.njit(cache=True)
def grow(growth: Growth) -> int:
    """Fill `growth.nodes` with the best tree of at most `budget` drafted nodes; return nodes, root included."""
    table, tokens, nodes, evidence, heap = growth.table, growth.tokens, growth.nodes, growth.evidence, growth.heap
    heap[0] = 0
    put_root(nodes, tokens[len(tokens) - 1])
    _open(growth, 0, -1)
    num_nodes = 1
    while num_nodes <= growth.limits.budget and heap[0] > 0:
        chance, parent, rank = pop(heap)
        if chance < growth.limits.min_chance:
            break
        position = -1
        if rank == _COPY:
            position = evidence[parent]["position"] + 1
            put_node(nodes, num_nodes, parent, tokens[position], _CONTEXT, chance)
            evidence[num_nodes]["kind"] = _copied_class(growth.limits, table.ids, tokens, evidence[parent])
        else:
            entry = evidence[parent]["entry"]
            put_node(nodes, num_nodes, parent, table.ids[entry, rank], _ADJACENCY, chance)
            score = table.probabilities[entry, rank]
            evidence[num_nodes]["kind"] = score_class(score, evidence[parent]["is_bigram"] == 1)
            _offer_successor(growth, parent, rank + 1)
        _open(growth, num_nodes, position)
        num_nodes += 1
    return num_nodes


@nb.njit(cache=True)
def _open(growth: Growth, node: int, position: int) -> None:
    """Look up what may follow a new node, copied from context `position` or not (-1), and offer the best."""
    nodes, limits, known = growth.nodes, growth.limits, growth.evidence[node]
    if nodes.depths[node] >= limits.max_depth:
        return
    before = token_before(nodes, node, growth.tokens)
    entry, is_bigram = find_successors(growth.table, before, nodes.tokens[node], limits.use_bigram)
    known["entry"], known["is_bigram"] = entry, is_bigram
    known["position"] = -1
    if position >= 0 and position + 1 < len(growth.tokens):
        parent = growth.evidence[nodes.parents[node]]
        known["position"] = position
        known["suffix_len"] = parent["suffix_len"] + 1
        known["has_consensus"] = parent["has_consensus"]
    elif limits.use_context:
        path = _last_tokens(growth.tokens, nodes.tokens, nodes.parents, node)
        found, suffix_len, _, consensus = find_match(growth.context, growth.tokens, path)
        known["position"], known["suffix_len"] = found, suffix_len
        known["has_consensus"] = 1 if consensus & limits.consensus else 0
    growth.scales[node] = nodes.scores[node]
    if known["position"] >= 0:
        chance = growth.chances[_copied_class(limits, growth.table.ids, growth.tokens, known)]
        push(growth.heap, nodes.scores[node] * chance, node, _COPY)
        growth.scales[node] *= 1 - chance
    if limits.use_spine_branches or nodes.sources[node] != _CONTEXT:
        _offer_successor(growth, node, 0)


@nb.njit(cache=True)
def _last_tokens(
    tokens: NDArray[np.int32], drafted: NDArray[np.int32], parents: NDArray[np.int32], node: int
) -> NDArray[np.int32]:
    """The last tokens of the path to `node`, at most MAX_SUFFIX, following parent links, then the sequence."""
    path = np.empty(MAX_SUFFIX, np.int32)
    slot = MAX_SUFFIX
    while node > 0 and slot > 0:
        slot -= 1
        path[slot] = drafted[node]
        node = parents[node]
    position = len(tokens)
    while position > 0 and slot > 0:
        slot -= 1
        position -= 1
        path[slot] = tokens[position]
    return path[slot:]


@nb.njit(cache=True)
def _copied_class(limits: Limits, ids: NDArray[np.int32], tokens: NDArray[np.int32], known: np.void) -> int:
    """The evidence class of the token copied after a node with a match; ids: int32 [E, K], the table's."""
    if not limits.use_confidence:
        return POOLED
    copied = tokens[known["position"] + 1]
    entry = known["entry"]
    agreement = 3
    if entry >= 0:
        agreement = 2
        for rank in range(NUM_SUCCESSORS):
            if ids[entry, rank] == copied:
                agreement = 0 if rank == 0 else 1
                break
    return int(context_class(known["suffix_len"], agreement, known["has_consensus"] == 1))


@nb.njit(cache=True)
def _offer_successor(growth: Growth, node: int, rank: int) -> None:
    """Offer the first adjacency successor of `node` from `rank` on that is not the copied token."""
    known, ids = growth.evidence[node], growth.table.ids
    entry = known["entry"]
    if entry < 0:
        return
    copied = _NO_TOKEN_TO_SKIP if known["position"] < 0 else growth.tokens[known["position"] + 1]
    while rank < NUM_SUCCESSORS and ids[entry, rank] == copied:
        rank += 1
    if rank < NUM_SUCCESSORS and ids[entry, rank] != NO_TOKEN:
        kind = score_class(growth.table.probabilities[entry, rank], known["is_bigram"] == 1)
        push(growth.heap, growth.scales[node] * growth.chances[kind], node, rank)
