"""GTO's draft tree reward (section 3.1): how many tokens of a tree the target is expected to accept.

Pure numpy. Invariant: branches are the paths to the tree's leaves; lengths count drafted tokens without the bonus
token.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from decoding.training.heads.options import Aggregate
from decoding.training.heads.trees import Trees

# Shape suffixes: P rows, L nodes of a tree, M rows of a group, G groups.
FloatArray = NDArray[np.float64]


def branch_lengths(trees: Trees, chances_PL: FloatArray) -> FloatArray:
    """float64 [P, L]: eq. 3-4 for the path to each node. chances_PL: the target's probability of each node's token
    after its parent; for the greedy form ones and zeros, which give whole lengths."""
    num_rows, num_nodes = trees.tokens_PL.shape
    paths_PL = np.ones((num_rows, num_nodes + 1))  # the last column is the root's: parent -1 points to it
    lengths_PL = np.zeros((num_rows, num_nodes + 1))
    rows = np.arange(num_rows)
    for node in range(num_nodes):
        parents = trees.parents_PL[:, node]
        paths_PL[:, node] = paths_PL[rows, parents] * chances_PL[:, node]
        lengths_PL[:, node] = lengths_PL[rows, parents] + paths_PL[:, node]
    return lengths_PL[:, :num_nodes]


def is_leaf(trees: Trees) -> NDArray[np.bool_]:
    """bool [P, L]: whether a node has no children."""
    num_rows, num_nodes = trees.tokens_PL.shape
    has_children = np.zeros((num_rows, num_nodes + 1), np.bool_)
    has_children[np.arange(num_rows)[:, None], trees.parents_PL] = True
    return ~has_children[:, :num_nodes]


def tree_rewards(trees: Trees, chances_PL: FloatArray, aggregate: Aggregate, temperature: float) -> FloatArray:
    """float64 [P]: eq. 5 over each tree's branches, or their maximum or mean length (Table 3's ablations)."""
    lengths_PL, leaves_PL = branch_lengths(trees, chances_PL), is_leaf(trees)
    longest_P: FloatArray = np.where(leaves_PL, lengths_PL, -np.inf).max(1)
    if aggregate == "max":
        return longest_P
    if aggregate == "mean":
        mean_P: FloatArray = (lengths_PL * leaves_PL).sum(1) / leaves_PL.sum(1)
        return mean_P
    above_PL = np.exp(temperature * (lengths_PL - longest_P[:, None])) * leaves_PL
    smooth_P: FloatArray = longest_P + np.log(above_PL.sum(1)) / temperature
    return smooth_P


@dataclass(frozen=True, slots=True)
class Accepted:
    """The longest accepted branch of each tree: its tokens, int64 [P, D], and its length, int64 [P]. D is the largest
    length; tokens after a branch's end are padding."""

    tokens_PD: NDArray[np.int64]
    lengths_P: NDArray[np.int64]


def longest_accepted(trees: Trees, is_likeliest_PL: NDArray[np.bool_]) -> Accepted:
    """The branches that a greedy target accepts. is_likeliest_PL: whether a node's token is the target's most likely
    one after its parent."""
    lengths_PL = branch_lengths(trees, is_likeliest_PL.astype(np.float64))
    ends_P = np.where(is_likeliest_PL, lengths_PL, 0).argmax(1)
    lengths_P = lengths_PL.max(1).astype(np.int64)
    tokens_PD = np.zeros((len(ends_P), int(lengths_P.max(initial=0))), np.int64)
    for row, (end, length) in enumerate(zip(ends_P.tolist(), lengths_P.tolist(), strict=True)):
        node = end
        for depth in range(length - 1, -1, -1):
            tokens_PD[row, depth] = trees.tokens_PL[row, node]
            node = trees.parents_PL[row, node]
    return Accepted(tokens_PD, lengths_P)


def advantages(rewards_GM: FloatArray, reference_GM: FloatArray, floor: float) -> FloatArray:
    """float64 [G, M]: eq. 9-10, debiased by the reference head's trees and standardised within each group."""
    debiased_GM = rewards_GM - reference_GM
    centred_GM = debiased_GM - debiased_GM.mean(1, keepdims=True)
    standardised: FloatArray = centred_GM / (centred_GM.std(1, keepdims=True) + floor)
    return standardised
