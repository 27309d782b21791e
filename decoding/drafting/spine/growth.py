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
from decoding.drafting.spine.priors import POOLED, context_class, score_class
from decoding.drafting.tree.frontier import pop, push
from decoding.drafting.tree.growth import Growth
from decoding.drafting.tree.nodes import put_node, put_root, token_before
from decoding.stores.adjacency import find_successors
from decoding.stores.context import MAX_SUFFIX, ContextArrays, find_match
from decoding.stores.successor_table import NO_TOKEN, NUM_SUCCESSORS, SuccessorArrays

_COPY = NUM_SUCCESSORS  # rank of the token copied from context; adjacency successors have ranks 0..9
_NO_TOKEN_TO_SKIP = -2
_CONTEXT, _ADJACENCY = int(Source.CONTEXT), int(Source.ADJACENCY)

# What speaks for what follows a node. position: the context position its path matched up to (-1: none); suffix_len:
# tokens shared there; entry: its adjacency entry (-1: none); rest: what the copied token leaves of the node's chance.
EVIDENCE = np.dtype([
    ("position", np.int32), ("suffix_len", np.int32), ("has_consensus", np.int32),
    ("entry", np.int32), ("is_bigram", np.int32), ("rest", np.float32),
])  # fmt: skip


class SpineSource(NamedTuple):
    """Where candidates come from and what of it counts. evidence: EVIDENCE [n], of what follows each node, written as
    the tree grows; consensus: the bit of it that counts; use_confidence: else one rate for all copied tokens;
    use_spine_branches: successors of copied nodes."""

    table: SuccessorArrays
    context: ContextArrays
    evidence: NDArray[np.void]
    consensus: int
    use_bigram: bool
    use_context: bool
    use_confidence: bool
    use_spine_branches: bool


@nb.njit(cache=True)
def grow(growth: Growth, source: SpineSource) -> int:
    """Fill `growth.nodes` with the best tree within its limits; return how many nodes there are, root included."""
    tokens, limits, nodes, heap = growth.tokens, growth.limits, growth.nodes, growth.heap
    table, evidence = source.table, source.evidence
    heap[0] = 0
    put_root(nodes, tokens[len(tokens) - 1])
    _open(growth, source, 0, -1)
    num_nodes = 1
    while num_nodes <= limits.max_nodes and heap[0] > 0:
        chance, parent, rank = pop(heap)
        if chance < limits.min_chance:
            break
        position = -1
        if rank == _COPY:
            position = evidence[parent]["position"] + 1
            put_node(nodes, num_nodes, parent, tokens[position], _CONTEXT, chance)
            nodes.classes[num_nodes] = _copied_class(source, tokens, evidence[parent])
        else:
            entry = evidence[parent]["entry"]
            put_node(nodes, num_nodes, parent, table.ids[entry, rank], _ADJACENCY, chance)
            score = table.probabilities[entry, rank]
            nodes.classes[num_nodes] = score_class(score, evidence[parent]["is_bigram"] == 1)
            _offer_successor(growth, source, parent, rank + 1)
        _open(growth, source, num_nodes, position)
        num_nodes += 1
    return num_nodes


@nb.njit(cache=True)
def _open(growth: Growth, source: SpineSource, node: int, position: int) -> None:
    """Look up what may follow a new node, copied from context `position` or not (-1), and offer the best."""
    nodes, known = growth.nodes, source.evidence[node]
    if nodes.depths[node] >= growth.limits.max_depth:
        return
    before = token_before(nodes, node, growth.tokens)
    entry, is_bigram = find_successors(source.table, before, nodes.tokens[node], source.use_bigram)
    known["entry"], known["is_bigram"] = entry, is_bigram
    known["position"] = -1
    if position >= 0 and position + 1 < len(growth.tokens):
        parent = source.evidence[nodes.parents[node]]
        known["position"] = position
        known["suffix_len"] = parent["suffix_len"] + 1
        known["has_consensus"] = parent["has_consensus"]
    elif source.use_context:
        path = _last_tokens(growth.tokens, nodes.tokens, nodes.parents, node)
        found, suffix_len, _, consensus = find_match(source.context, growth.tokens, path)
        known["position"], known["suffix_len"] = found, suffix_len
        known["has_consensus"] = 1 if consensus & source.consensus else 0
    known["rest"] = nodes.scores[node]
    if known["position"] >= 0:
        chance = growth.chances[_copied_class(source, growth.tokens, known)]
        push(growth.heap, nodes.scores[node] * chance, node, _COPY)
        known["rest"] *= 1 - chance
    if source.use_spine_branches or nodes.sources[node] != _CONTEXT:
        _offer_successor(growth, source, node, 0)


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
def _copied_class(source: SpineSource, tokens: NDArray[np.int32], known: np.void) -> int:
    """The evidence class of the token copied after a node with a match."""
    if not source.use_confidence:
        return POOLED
    copied = tokens[known["position"] + 1]
    entry = known["entry"]
    agreement = 3
    if entry >= 0:
        agreement = 2
        for rank in range(NUM_SUCCESSORS):
            if source.table.ids[entry, rank] == copied:
                agreement = 0 if rank == 0 else 1
                break
    return int(context_class(known["suffix_len"], agreement, known["has_consensus"] == 1))


@nb.njit(cache=True)
def _offer_successor(growth: Growth, source: SpineSource, node: int, rank: int) -> None:
    """Offer the first adjacency successor of `node` from `rank` on that is not the copied token."""
    known, ids = source.evidence[node], source.table.ids
    entry = known["entry"]
    if entry < 0:
        return
    copied = _NO_TOKEN_TO_SKIP if known["position"] < 0 else growth.tokens[known["position"] + 1]
    while rank < NUM_SUCCESSORS and ids[entry, rank] == copied:
        rank += 1
    if rank < NUM_SUCCESSORS and ids[entry, rank] != NO_TOKEN:
        kind = score_class(source.table.probabilities[entry, rank], known["is_bigram"] == 1)
        push(growth.heap, known["rest"] * growth.chances[kind], node, rank)
