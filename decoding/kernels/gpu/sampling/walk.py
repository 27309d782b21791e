"""`verify.verify` on the device, where every node's token has been drawn already."""

# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

TREE_WORDS = tl.constexpr(3)


@triton.jit
def walk(trees, nodes, drawn, results, NODES: tl.constexpr):
    """Walk one tree of n nodes. trees: int64 [T, 3], its first node, n, and where its results begin. nodes: int64 [N,
    2], tokens and parents, the latter local to the tree. drawn: int32 [N]. Writes the path's length, then the path's
    nodes (room for n), then the token drawn at each of them (room for n)."""
    record = trees + tl.program_id(0) * TREE_WORDS
    first, num_nodes, path = tl.load(record), tl.load(record + 1), results + tl.load(record + 2)
    places = tl.arange(0, NODES)
    tokens = tl.load(nodes + 2 * (first + places), mask=places < num_nodes, other=-1)
    parents = tl.load(nodes + 2 * (first + places) + 1, mask=places < num_nodes, other=-2)
    node, depth = 0, 0
    while node >= 0:
        token = tl.load(drawn + first + node)
        tl.store(path + 1 + depth, node)
        tl.store(path + 1 + num_nodes + depth, token)
        depth += 1
        node = tl.max(tl.where((parents == node) & (tokens == token) & (token >= 0), places, -1), 0)
    tl.store(path, depth)
