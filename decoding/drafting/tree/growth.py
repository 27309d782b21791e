"""What a draft tree grows by and into, whatever its candidates come from.

Knows no source: each brings a record of its own beside this one. Invariant: a tree keeps within its limits.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from decoding.costs.price import DraftBudget
from decoding.drafting.tree import frontier, nodes
from decoding.drafting.tree.nodes import Nodes

_ANY_DEPTH = np.iinfo(np.int32).max


class Limits(NamedTuple):
    """What a tree may have. max_nodes: drafted ones; max_depth: edges from the root."""

    max_nodes: int
    max_depth: int


class Buffers(NamedTuple):
    """Room for one tree, reused from step to step. heap: `frontier`'s, for growers that go best-first."""

    nodes: Nodes
    heap: NDArray[np.int64]


def limits_of(budget: DraftBudget, max_depth: int | None) -> Limits:
    """The budget's nodes, as deep as `max_depth`, or as they come where it is None."""
    return Limits(budget.max_nodes, _ANY_DEPTH if max_depth is None else max_depth)


def allocate(num_nodes: int) -> Buffers:
    """Room for a tree of `num_nodes`, root included."""
    return Buffers(nodes.allocate(num_nodes), frontier.allocate(num_nodes))
