"""Random trees and their paths, for tests."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def random_parents(num_nodes: int, generator: np.random.Generator, reach: int = 6) -> NDArray[np.int32]:
    """int32 [n]: a tree in which every node hangs on one of the `reach` nodes before it."""
    parents = [-1]
    for node in range(1, num_nodes):
        parents.append(int(generator.integers(max(0, node - reach), node)))
    return np.array(parents, np.int32)


def path_to(node: int, parents: NDArray[np.int32]) -> NDArray[np.int32]:
    """int32 [d]: the nodes from the root down to `node`."""
    nodes = []
    while node >= 0:
        nodes.append(node)
        node = int(parents[node])
    return np.array(nodes[::-1], np.int32)
