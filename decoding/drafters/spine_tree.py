"""BuildSpineTree: the paper's draft tree, a copied spine with branches from the adjacency table.

Owns Algorithm 1 of GOOSE as one compiled function. Knows nothing of how spine length was chosen.
Invariant: the budget counts every drafted node, spine and branches alike, and is never exceeded.
"""

from __future__ import annotations

from typing import NamedTuple

import numba as nb
import numpy as np
from numpy.typing import NDArray

from decoding.stores.adjacency import NO_TOKEN, NUM_SUCCESSORS, AdjacencyArrays, find_successors
from decoding.tree import Source

MIN_SCORE = 0.01
_CONTEXT, _ADJACENCY = int(Source.CONTEXT), int(Source.ADJACENCY)


class SpineShape(NamedTuple):
    """How Algorithm 1 spends its budget, all in nodes or edges.

    spine_len: nodes on the spine; spine_share: the paper's rho, the part of the rest that goes to branches
    of spine nodes, the other part to the root; branch_depth: the paper's D, from a branch's own start.
    """

    budget: int
    spine_len: int
    spine_share: float
    branch_depth: int
    max_depth: int
    use_bigram: bool


class SpineNodes(NamedTuple):
    """Buffers of at least budget + 1 nodes; `branch_depths` is 0 on root and spine."""

    tokens: NDArray[np.int32]
    parents: NDArray[np.int32]
    sources: NDArray[np.int8]
    depths: NDArray[np.int32]
    branch_depths: NDArray[np.int32]
    scores: NDArray[np.float32]


def allocate_nodes(budget):
    i = lambda: np.zeros(budget + 1, np.int32)
    return SpineNodes(i(), i(), np.zeros(budget + 1, np.int8), i(), i(), np.zeros(budget + 1, np.float32))


@nb.njit(cache=True)
def _add(nodes, count, parent, token, source, score):
    nodes.tokens[count] = token
    nodes.parents[count] = parent
    nodes.sources[count] = source
    nodes.scores[count] = score
    nodes.depths[count] = nodes.depths[parent] + 1
    nodes.branch_depths[count] = 0 if source == _CONTEXT else nodes.branch_depths[parent] + 1
    return count + 1


@nb.njit(cache=True)
def _attach(table, nodes, count, parent, previous, width, shape, skip):
    """Attach up to `width` best successors of `parent`, none of them `skip`; scores are relative to siblings."""
    entry, _ = find_successors(table, previous, nodes.tokens[parent], shape.use_bigram)
    if entry < 0 or nodes.depths[parent] >= shape.max_depth:
        return count
    total = table.probabilities[entry].sum()
    added = 0
    for rank in range(NUM_SUCCESSORS):
        token = table.ids[entry, rank]
        score = table.probabilities[entry, rank] / total
        if added == width or count > shape.budget or token == NO_TOKEN or score < MIN_SCORE:
            break
        if token != skip:
            count = _add(nodes, count, parent, token, _ADJACENCY, score)
            added += 1
    return count


@nb.njit(cache=True)
def build_spine_tree(table, tokens, chain, nodes, shape):
    nodes.tokens[0] = tokens[-1]
    nodes.parents[0] = -1
    nodes.sources[0] = 0
    nodes.depths[0] = 0
    nodes.branch_depths[0] = 0
    count = 1
    spine_len = min(shape.spine_len, len(chain), shape.budget, shape.max_depth)
    for i in range(spine_len):
        count = _add(nodes, count, i, chain[i], _CONTEXT, 1.0)
    before_root = tokens[-2] if len(tokens) > 1 else -1
    rest = shape.budget - spine_len
    spine_rest = int(rest * shape.spine_share) if spine_len > 0 else 0
    skip = chain[0] if len(chain) > 0 else -2
    count = _attach(table, nodes, count, 0, before_root, rest - spine_rest, shape, skip)
    harmonic = 0.0
    for i in range(1, spine_len + 1):
        harmonic += 1.0 / i
    for i in range(1, spine_len + 1):
        if spine_rest <= 0:
            break
        width = min(spine_rest, max(1, int(shape.spine_share * rest / i / harmonic)))
        skip = chain[i] if i < len(chain) else -2
        before = count
        count = _attach(table, nodes, count, i, nodes.tokens[i - 1], width, shape, skip)
        spine_rest -= count - before
    node = spine_len + 1
    while node < count and count <= shape.budget:
        if nodes.branch_depths[node] < shape.branch_depth:
            remaining = shape.budget + 1 - count
            width = min(int(np.ceil(remaining * nodes.scores[node])), max(1, NUM_SUCCESSORS // nodes.branch_depths[node]))
            count = _attach(table, nodes, count, node, nodes.tokens[nodes.parents[node]], max(1, width), shape, -2)
        node += 1
    last = spine_len
    for i in range(spine_len, len(chain)):
        if count > shape.budget or i >= shape.max_depth:
            break
        duplicate = False
        for k in range(last + 1, count):
            if nodes.parents[k] == last and nodes.tokens[k] == chain[i]:
                duplicate = True
        count = _add(nodes, count, last, chain[i], _CONTEXT, 1.0)
        last = count - 1
    return count
