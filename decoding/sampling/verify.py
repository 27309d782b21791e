"""The one accept rule of every drafter: follow the target's own tokens through the draft tree.

Knows nothing of sampling: `chosen` already holds the target's own token at every row.
"""

from __future__ import annotations

import numba as nb
import numpy as np
from numpy.typing import NDArray

from decoding.core.tree import DraftTree, IntArray
from decoding.core.verdict import ROOT_PATH, Verdict


def walk(tree: DraftTree, chosen: NDArray[np.int32]) -> Verdict:
    """Accept the longest path on which each node equals the target's own token at its parent.

    chosen: int32 [n], the target's own token after each node. Lossless for any tree: the tokens
    returned depend on `chosen` along the path only (goose, Algorithm 3, without source priority:
    siblings are distinct, so at most one child matches).
    """
    if len(tree) == 1:
        return Verdict(ROOT_PATH, chosen)
    path = _walk(tree.tokens, tree.parents, chosen)
    return Verdict(path, chosen[path])


@nb.njit(cache=True)
def _walk(tokens: IntArray, parents: IntArray, chosen: IntArray) -> IntArray:
    path = np.empty(len(tokens), np.int32)
    path[0] = 0
    length, current = 1, 0
    for node in range(1, len(tokens)):  # children follow their parent, so one pass is enough
        if parents[node] == current and tokens[node] == chosen[current]:
            path[length] = node
            length += 1
            current = node
    return path[:length].copy()
