"""The one accept rule of every drafter: follow the target's own tokens through the draft tree.

Knows nothing of how a token is drawn. Invariant: a token is drawn only from the rows of nodes that the walk reaches, so
sampling costs as much as the accepted path, not the tree.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch

from decoding.core.tree import DraftTree, IntArray, Verdict
from decoding.kernels.numba_kernel import kernel

NO_NODE = -1


class Sampler(Protocol):
    """Draws the tokens of one sequence in one step along one path from the root; each draw is one position further."""

    def draw(self, logits_V: torch.Tensor, node: int, /) -> int:
        """The token after a node, from the node's row. Raises BrokenLogits."""
        ...


def verify(tree: DraftTree, logits_NV: torch.Tensor, sampler: Sampler) -> Verdict:
    """Accept the longest path on which each node is the token drawn at its parent.

    logits_NV: float32, contiguous, the rows of the tree's nodes. Lossless for any tree: the tokens depend only on the
    draws along the path (goose, Algorithm 3, without source priority: siblings are distinct, so at most one child
    matches). Raises BrokenLogits.
    """
    path, tokens = [], []
    node = 0
    while node != NO_NODE:
        token = sampler.draw(logits_NV[node], node)
        path.append(node)
        tokens.append(token)
        node = child_of(tree.tokens, tree.parents, node, token)
    return Verdict(np.array(path, np.int32), np.array(tokens, np.int32))


@kernel(borrows=True)
def child_of(tokens: IntArray, parents: IntArray, node: int, token: int) -> int:
    """The child of a node that drafts this token, or NO_NODE. Children have higher indices than their parent."""
    for child in range(node + 1, len(tokens)):
        if parents[child] == node and tokens[child] == token:
            return child
    return NO_NODE


def walk(tree: DraftTree, tokens: IntArray) -> Verdict:
    """`verify` with known target tokens. tokens: int32 [n], the target's own token after each node."""
    return verify(tree, torch.empty(len(tree), 0), _Known(tokens))


class _Known:
    def __init__(self, tokens: IntArray) -> None:
        self._tokens = tokens

    def draw(self, _logits_V: torch.Tensor, node: int, /) -> int:
        return int(self._tokens[node])
