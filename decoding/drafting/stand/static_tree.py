"""A draft tree's shape without its tokens: which rank of which node's candidates takes each slot.

Owns the JSON file such a tree is kept in, with how it was made. Knows nothing of stores.
Invariant: slots are in order of worth and the first n of them form a tree: a slot's parent and its
siblings of lower rank come before it, so one file serves every budget.
"""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from decoding.errors import ConfigError

MAX_CHILDREN = 10


class StaticTree(msgspec.Struct, frozen=True, kw_only=True):
    """parents[i], ranks[i]: slot i takes candidate number ranks[i] of slot parents[i]; slot 0 is the root (-1, 0).

    made: how the tree came to be, for people. counts: of a tuned tree, how often each slot was accepted.
    """

    made: dict[str, str | int | float]
    parents: list[int]
    ranks: list[int]
    counts: list[int] = []

    def __post_init__(self) -> None:
        assert len(self.parents) == len(self.ranks) >= 1
        assert (self.parents[0], self.ranks[0]) == (-1, 0), "slot 0 is the root"
        children = [0] * len(self.parents)
        for slot, (parent, rank) in enumerate(zip(self.parents[1:], self.ranks[1:], strict=True), start=1):
            assert 0 <= parent < slot, (slot, parent)
            assert rank == children[parent] < MAX_CHILDREN, (slot, parent, rank)
            children[parent] += 1

    def __len__(self) -> int:
        return len(self.parents)

    def arrays(self) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """(parents, ranks), int32 [n]."""
        return np.array(self.parents, np.int32), np.array(self.ranks, np.int32)

    def depth(self) -> int:
        depths = [0] * len(self.parents)
        for slot in range(1, len(self.parents)):
            depths[slot] = depths[self.parents[slot]] + 1
        return max(depths)


def read_tree(path: str) -> StaticTree:
    """Raises ConfigError for a file that cannot be read or holds no tree."""
    try:
        return msgspec.json.decode(Path(path).read_bytes(), type=StaticTree)
    except (OSError, msgspec.DecodeError, AssertionError) as error:
        raise ConfigError(f"{path} is no draft tree: {error}") from error


def write_tree(path: Path, tree: StaticTree) -> None:
    path.write_bytes(msgspec.json.encode(tree) + b"\n")


@cache
def shipped_tree(name: str) -> StaticTree:
    """A tree that comes with the package: "general" or "gosling"."""
    return read_tree(str(Path(__file__).with_name("trees") / f"{name}.json"))


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

    counts[slot]: how often the slot was on an accepted path. A slot waits for its parent and its lower ranks.
    """
    previous = {(parent, rank): slot for slot, (parent, rank) in enumerate(zip(tree.parents, tree.ranks, strict=True))}
    worth = list(counts)
    for slot in range(len(tree) - 1, 0, -1):  # a slot is worth at least what needs it
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
