"""The arrays compiled builders write a draft tree into.

Knows nothing of sources or shapes. Invariant: nodes are written in index order, parents first.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba.extending import register_jitable
from numpy.typing import NDArray

from decoding.core.ranking import places_of_best
from decoding.core.tree import DraftTree
from decoding.kernels.numba_kernel import kernel


class Nodes(NamedTuple):
    """Room for n nodes, each array [n]. depths: edges from the root; scores: what the builder ranks by; names: bits
    of the sources that named the node, where its builder knows."""

    tokens: NDArray[np.int32]
    parents: NDArray[np.int32]
    sources: NDArray[np.int8]
    depths: NDArray[np.int32]
    scores: NDArray[np.float32]
    names: NDArray[np.int32]


@register_jitable
def allocate(num_nodes: int) -> Nodes:
    return Nodes(
        tokens=np.zeros(num_nodes, np.int32),
        parents=np.full(num_nodes, -1, np.int32),
        sources=np.zeros(num_nodes, np.int8),
        depths=np.zeros(num_nodes, np.int32),
        scores=np.ones(num_nodes, np.float32),
        names=np.zeros(num_nodes, np.int32),
    )


def to_tree(nodes: Nodes, num_nodes: int) -> DraftTree:
    """The first `num_nodes` nodes as a tree of their own."""
    return DraftTree(
        nodes.tokens[:num_nodes].copy(), nodes.parents[:num_nodes].copy(), nodes.sources[:num_nodes].copy()
    )


@kernel
def best_nodes(scores: NDArray[np.float32], num_nodes: int, budget: int) -> NDArray[np.int32]:
    """int32, ascending: the root and the `budget` likeliest nodes; a tree, if no child is likelier than its parent."""
    return places_of_best(scores[:num_nodes], budget + 1)  # of equals the earlier, so parents first


@kernel
def part_of(
    nodes: Nodes, kept: NDArray[np.int32]
) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int8], NDArray[np.int32]]:
    """Tokens, parents, sources and names of these nodes, ascending, which are a tree of their own."""
    count = len(kept)
    tokens, parents, names = np.empty(count, np.int32), np.empty(count, np.int32), np.empty(count, np.int32)
    sources, places = np.empty(count, np.int8), np.empty(kept[-1] + 1, np.int32)
    for place, node in enumerate(kept):
        places[node] = place
        tokens[place], sources[place], names[place] = nodes.tokens[node], nodes.sources[node], nodes.names[node]
        parents[place] = places[nodes.parents[node]] if place else -1
    return tokens, parents, sources, names


@kernel(borrows=True)
def put_root(nodes: Nodes, token: int) -> None:
    nodes.tokens[0] = token
    nodes.parents[0] = -1
    nodes.sources[0] = 0
    nodes.depths[0] = 0
    nodes.scores[0] = 1.0


@kernel(borrows=True)
def put_node(nodes: Nodes, node: int, parent: int, token: int, source: int, score: float) -> None:
    nodes.tokens[node] = token
    nodes.parents[node] = parent
    nodes.sources[node] = source
    nodes.depths[node] = nodes.depths[parent] + 1
    nodes.scores[node] = score
