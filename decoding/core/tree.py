"""The draft tree: what a drafter proposes and one target forward verifies, and the verdict on it.

Pure data. Node 0 is the root, the last known token, which is not yet in the KV cache.
Invariant: `parents[i] < i`, so one pass in index order always sees a parent before its children.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from decoding.kernels.numba_kernel import kernel

IntArray = NDArray[np.int32]


class Source(IntEnum):
    """Where a drafted token came from. Values are stable: they cross the wire and label metrics."""

    ROOT = 0
    CONTEXT = 1  # copied from an earlier occurrence in prompt or output
    ADJACENCY = 2  # successor table harvested from the target's own logits
    NGRAM = 3
    DRAFT_MODEL = 4
    PREDICTION = 5
    GRAMMAR = 6
    BONUS = 7  # not drafted: the target's own token after the last accepted node


@dataclass(frozen=True, slots=True)
class Draws:
    """The distribution q that the children of each node were drawn from, without replacement and in index order.

    ids: int32 [n, k]; shares: float64 [n, k], q of each id after the node, 0 where the id is padding.
    """

    ids: IntArray
    shares: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class DraftTree:
    """A tree of candidate continuations.

    tokens, parents: int32 [n]; sources: int8 [n]. `tokens[0]` is the root token, `parents[0]` is -1.
    Siblings have distinct tokens, so at most one child can equal the target's token. draws: only for trees that are
    verified by rejection. origins: int32 [n], only for a tree that was pruned: each node's index in the tree that the
    drafter proposed. names: int32 [n], only where several sources may propose a node: bit `source` is set for each that
    did.
    """

    tokens: IntArray
    parents: IntArray
    sources: NDArray[np.int8]
    draws: Draws | None = None
    origins: IntArray | None = None
    names: IntArray | None = None

    def __post_init__(self) -> None:
        assert len(self.tokens) == len(self.parents) == len(self.sources) >= 1
        assert self.parents[0] == -1, self.parents

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def num_drafted(self) -> int:
        """Nodes that count against the budget: all but the root."""
        return len(self.tokens) - 1

    def of_nodes(self, proposed: IntArray) -> IntArray:
        """int32 [n]: the drafter's notes on this tree's nodes. proposed: its notes on each node it proposed."""
        return proposed[: len(self)] if self.origins is None else proposed[self.origins]

    def named_by(self, node: int) -> list[Source]:
        """The sources that proposed a node."""
        if self.names is None or self.names[node] == 0:
            return [Source(self.sources[node])]
        return [source for source in Source if self.names[node] >> source & 1]

    def depths(self) -> IntArray:
        """int32 [n]: edges from the root; the root has depth 0."""
        return depths_of(self.parents)

    def check_integrity(self) -> None:
        """Raise AssertionError unless every promise of the class docstring holds."""
        assert np.all(self.parents[1:] < np.arange(1, len(self))), self.parents
        assert np.all(self.parents[1:] >= 0), self.parents
        edges = set(zip(self.parents.tolist(), self.tokens.tolist(), strict=True))
        assert len(edges) == len(self), "two siblings draft the same token"


def chain(root: int, tokens: IntArray, source: Source) -> DraftTree:
    """A tree with one child per node: plain decoding when `tokens` is empty."""
    num_nodes = len(tokens) + 1
    ids = np.empty(num_nodes, np.int32)
    ids[0] = root
    ids[1:] = tokens
    sources = np.full(num_nodes, source, np.int8)
    sources[0] = Source.ROOT
    return DraftTree(ids, np.arange(-1, num_nodes - 1, dtype=np.int32), sources)


_ROOT_PARENTS: IntArray = np.full(1, -1, np.int32)
_ROOT_SOURCES = np.full(1, Source.ROOT, np.int8)


def root_only(root: int) -> DraftTree:
    """The tree of a plain decode step: the root alone."""
    return tree_of_root(np.array([root], np.int32))


def tree_of_root(root: IntArray) -> DraftTree:
    """The same, of an array of one token."""
    return DraftTree(root, _ROOT_PARENTS, _ROOT_SOURCES)


@kernel
def depths_of(parents: IntArray) -> IntArray:
    """int32 [n]: edges from the root to each node, of trees that lie side by side: a parent of -1 begins the next."""
    depths, root = np.zeros(len(parents), np.int32), 0
    for node in range(len(parents)):
        if parents[node] < 0:
            root = node
        else:
            depths[node] = depths[root + parents[node]] + 1
    return depths


@dataclass(frozen=True, slots=True)
class Verdict:
    """path: int32 [a+1], the accepted nodes from the root (always node 0) downwards.

    tokens: int32 [a+1], the tokens to emit: the accepted nodes' tokens, then the bonus token.
    """

    path: IntArray
    tokens: IntArray

    @property
    def num_accepted(self) -> int:
        return len(self.path) - 1
