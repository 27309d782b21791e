"""The tree that STAND's tuning starts from, and its pruning by the counts of its slots.

Owns the paper's shape (STAND, Algorithm 1). Knows nothing of how slots are counted.
"""

from __future__ import annotations

import math

from decoding.drafting.stand.static_tree import StaticTree


def initial_tree() -> StaticTree:
    """The tree that tuning starts from: STAND, Algorithm 1, 625 nodes in 20 levels with ceilings throughout."""
    parents, ranks, widths = [-1], [0], {-1: 0}
    level = [0]
    for depth in range(20):
        below: list[int] = []
        for index, node in enumerate(level):
            width = _children_of(depth, ranks[node], siblings=widths[parents[node]])
            widths[node] = max(width, 3) if index == 0 else width
            below += range(len(parents), len(parents) + widths[node])
            parents += [node] * widths[node]
            ranks += range(widths[node])
        level = below
    return StaticTree(made={"by": "STAND, Algorithm 1"}, parents=parents, ranks=ranks)


def _children_of(depth: int, order: int, siblings: int) -> int:
    """Lines 6 to 16 of Algorithm 1; siblings: children of the node's parent, itself included."""
    if depth == 0:
        return 8
    if depth == 1:
        return max(8 - 2 * order, 1)
    width = math.ceil((siblings - 1) / (order * 0.7 + 1))
    return max(width, 2 if depth <= 3 else 0)


def pruned(tree: StaticTree, counts: list[int], num_nodes: int, made: dict[str, str | int | float]) -> StaticTree:
    """The `num_nodes` most accepted nodes of `tree` that form a tree, most accepted first, root not counted.

    counts[slot]: how often the slot was on an accepted path. A slot comes after its parent and its siblings of lower
    rank.
    """
    previous = {(parent, rank): slot for slot, (parent, rank) in enumerate(zip(tree.parents, tree.ranks, strict=True))}
    worth = list(counts)
    for slot in range(len(tree) - 1, 0, -1):  # a slot is worth at least as much as the slots that depend on it
        parent, rank = tree.parents[slot], tree.ranks[slot]
        for needed in (parent, previous.get((parent, rank - 1), 0)):
            worth[needed] = max(worth[needed], worth[slot])
    order = sorted(range(1, len(tree)), key=lambda slot: (-worth[slot], slot))[:num_nodes]
    place = {slot: index for index, slot in enumerate([0, *order])}
    return StaticTree(
        made=made,
        parents=[-1, *(place[tree.parents[slot]] for slot in order)],
        ranks=[0, *(tree.ranks[slot] for slot in order)],
        counts=[counts[slot] for slot in (0, *order)],
    )
