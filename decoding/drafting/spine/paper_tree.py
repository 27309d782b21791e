"""BuildSpineTree: the draft tree of the GOOSE paper, a copied spine with branches from the adjacency table.

Owns Algorithm 1 as one compiled function. Knows nothing of how the spine's length was chosen.
Invariant: the budget counts every drafted node, spine and branches alike, and is never exceeded.
"""

from __future__ import annotations

from typing import NamedTuple

import numba as nb
import numpy as np
from numpy.typing import NDArray

from decoding.core.tree import Source
from decoding.drafting.tree.growth import Limits
from decoding.drafting.tree.nodes import Nodes, put_node, put_root, token_before
from decoding.stores.ngram import find_successors
from decoding.stores.successor_table import NO_TOKEN, NUM_SUCCESSORS, SuccessorArrays

MIN_SCORE = 0.01
BRANCH_DEPTH = 6  # the paper's D, edges from a branch's own start
SPINE_SHARE = 0.5  # the paper's rho: what spine nodes' branches get of the nodes that are not spine
_NO_SKIP = np.int64(-2)  # equals no token
_CONTEXT, _ADJACENCY = np.int64(Source.CONTEXT), np.int64(Source.ADJACENCY)


class SpineShape(NamedTuple):
    """spine_len: nodes copied before branches get theirs; use_spine_branches: successors of copied nodes."""

    limits: Limits
    spine_len: int
    use_bigram: bool
    use_spine_branches: bool


@nb.njit(cache=True)
def build_spine_tree(
    table: SuccessorArrays,
    tokens: NDArray[np.int32],
    chain: NDArray[np.int32],
    nodes: Nodes,
    shape: SpineShape,
) -> int:
    """Fill `nodes` by Algorithm 1 (appendix B.1) and return how many there are, root included.

    tokens: int32 [t], the request's; chain: int32, the copied continuation, maybe longer than the spine:
    what branches leave of the budget goes to it. A branch's `scores` entry is its share among siblings.
    """
    put_root(nodes, tokens[len(tokens) - 1])
    spine_len = min(shape.spine_len, len(chain), shape.limits.max_nodes, shape.limits.max_depth)
    for step in range(spine_len):  # step 1: the spine
        put_node(nodes, step + 1, step, chain[step], _CONTEXT, 1.0)
    rest = shape.limits.max_nodes - spine_len
    spine_rest = int(rest * SPINE_SHARE) if spine_len > 0 and shape.use_spine_branches else 0
    before_root = token_before(nodes, 0, tokens)
    skip = np.int64(chain[0]) if len(chain) > 0 else _NO_SKIP
    where = (np.int64(0), np.int64(before_root), skip, np.int64(rest - spine_rest))
    num_nodes: int = _attach(table, nodes, np.int64(spine_len + 1), where, shape)
    if spine_rest > 0:
        num_nodes = _branch_spine(table, nodes, num_nodes, (spine_len, spine_rest), chain, shape)
    num_nodes = _extend(table, nodes, num_nodes, spine_len, shape)
    return int(_lengthen(nodes, num_nodes, spine_len, chain, shape))


@nb.njit(cache=True)
def _branch_spine(
    table: SuccessorArrays,
    nodes: Nodes,
    num_nodes: int,
    spine: tuple[int, int],
    chain: NDArray[np.int32],
    shape: SpineShape,
) -> int:
    """Step 3: spine = (length, nodes for its branches), shared by the harmonic rule, at least one each."""
    spine_len, share = spine
    harmonic = 0.0
    for step in range(1, spine_len + 1):
        harmonic += 1.0 / step
    left = share
    for step in range(1, spine_len + 1):
        width = min(left, max(1, int(share / step / harmonic)))
        skip = np.int64(chain[step]) if step < len(chain) else _NO_SKIP
        where = (np.int64(step), np.int64(nodes.tokens[step - 1]), skip, np.int64(width))
        attached = _attach(table, nodes, num_nodes, where, shape)
        left -= attached - num_nodes
        num_nodes = attached
    return num_nodes


@nb.njit(cache=True)
def _extend(table: SuccessorArrays, nodes: Nodes, num_nodes: int, spine_len: int, shape: SpineShape) -> int:
    """Step 4: breadth-first, each branch node takes children in proportion to its score among its siblings."""
    branch_depths = np.zeros(shape.limits.max_nodes + 1, np.int32)
    node = spine_len + 1
    while node < num_nodes:
        parent = nodes.parents[node]
        branch_depths[node] = branch_depths[parent] + 1 if parent > spine_len else 1
        left = shape.limits.max_nodes + 1 - num_nodes
        if left > 0 and branch_depths[node] < BRANCH_DEPTH:
            width = min(int(np.ceil(left * nodes.scores[node])), NUM_SUCCESSORS // branch_depths[node])
            where = (np.int64(node), np.int64(nodes.tokens[parent]), _NO_SKIP, np.int64(max(1, width)))
            num_nodes = _attach(table, nodes, num_nodes, where, shape)
        node += 1
    return num_nodes


@nb.njit(cache=True)
def _lengthen(nodes: Nodes, num_nodes: int, spine_len: int, chain: NDArray[np.int32], shape: SpineShape) -> int:
    """What is left of the budget goes to the rest of the chain (branches leave out its next token)."""
    last = spine_len
    for step in range(spine_len, min(len(chain), shape.limits.max_depth)):
        if num_nodes > shape.limits.max_nodes:
            break
        put_node(nodes, num_nodes, last, chain[step], _CONTEXT, 1.0)
        last = num_nodes
        num_nodes += 1
    return num_nodes


@nb.njit(cache=True)
def _attach(
    table: SuccessorArrays,
    nodes: Nodes,
    num_nodes: int,
    where: tuple[int, int, int, int],
    shape: SpineShape,
) -> int:
    """Attach the best successors of a node: where = (node, token before it, token to leave out, most children)."""
    node, before, skip, width = where
    entry, _ = find_successors(table, before, nodes.tokens[node], shape.use_bigram)
    if entry < 0 or nodes.depths[node] >= shape.limits.max_depth:
        return num_nodes
    total = table.probabilities[entry].sum()
    last = min(shape.limits.max_nodes + 1, num_nodes + width)
    for rank in range(NUM_SUCCESSORS):
        token, score = table.ids[entry, rank], table.probabilities[entry, rank] / total
        if num_nodes >= last or token == NO_TOKEN or score < MIN_SCORE:
            break
        if token != skip:
            put_node(nodes, num_nodes, node, token, _ADJACENCY, score)
            num_nodes += 1
    return num_nodes
