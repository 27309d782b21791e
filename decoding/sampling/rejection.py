"""Verification by rejection: standard speculative sampling over children drawn without replacement.

An alternative way to draw the token after a node, for comparison with the literature: the distribution is exact, but a
reply depends on the drafts. The walk follows these tokens like the target's own.
Invariant: a node's children are tested in index order, the order in which they were drawn from q.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from decoding.core.tree import DraftTree, IntArray
from decoding.kernels.cpu.sampling.noise import uniform
from decoding.kernels.numba_kernel import kernel
from decoding.sampling.law import Law, checked_highest, nucleus

ACCEPT_STREAM, LAST_STREAM = 2, 3  # noise streams of the tests, and of the token drawn when all tests fail


class Place(NamedTuple):
    """The place that noise is drawn for. position: of the token after the root; node: of the tree."""

    position: int
    node: int


class RejectionSampler:
    """Draws for one sequence in one step. tree: with `draws`. position: of the token after its root.

    Child x is accepted if p(x) > r q(x); else p becomes norm(max(p - q, 0)) and x is removed from q. If no child is
    accepted, the token is drawn from the rest of p (Leviathan et al. 2023; without replacement: Sequoia, section 3.2).
    """

    def __init__(self, tree: DraftTree, law: Law, position: int) -> None:
        assert tree.draws is not None
        self._tree = tree
        self._draws = tree.draws
        self._law = law
        self._position = position
        self._num_drawn = 0

    def draw(self, logits_V: torch.Tensor, node: int, /) -> int:
        row = logits_V.numpy()
        best = checked_highest(row, self._position + self._num_drawn)
        self._num_drawn += 1
        children = self._tree.tokens[self._tree.parents == node]
        ids, shares = self._draws.ids[node], self._draws.shares[node].copy()
        p_V = target_law(row, np.float32(best), self._law)
        return int(_emit(p_V, children, ids, shares, self._law.seed, Place(self._position, node)))


@kernel
def target_law(row: NDArray[np.float32], best: np.float32, law: Law) -> NDArray[np.float64]:
    """float64 [V]: the row's distribution under a law with a temperature above 0. best: the row's highest value."""
    p_V = np.zeros(len(row), np.float64)
    floor = math.log(law.min_p) if law.min_p > 0.0 else -np.inf
    kept = nucleus(row, best, law) if law.top_k > 0 or law.top_p < 1.0 else np.arange(len(row))
    total = 0.0
    for token in kept:
        score = (np.float64(row[token]) - np.float64(best)) / law.temperature
        if score >= floor:
            p_V[token] = math.exp(score)
            total += p_V[token]
    return p_V / total


@kernel(borrows=True)
def _emit(
    p_V: NDArray[np.float64],
    children: IntArray,
    ids: NDArray[np.int32],
    shares: NDArray[np.float64],
    seed: np.uint64,
    place: Place,
) -> int:
    """The first child that passes its test, or else a draw from the rest of p. Overwrites p_V and shares."""
    total = 1.0  # p_V sums to `total`, shares to `left`: both stay unnormalised
    for index in range(len(children)):
        token = children[index]
        left = shares.sum()
        slot = 0
        while ids[slot] != token:
            slot += 1
        if p_V[token] / total > uniform(seed, place.position, index, ACCEPT_STREAM, place.node) * shares[slot] / left:
            return int(token)
        scale = total / left
        for other in range(len(ids)):
            if shares[other] > 0.0:
                taken = min(p_V[ids[other]], scale * shares[other])
                p_V[ids[other]] -= taken
                total -= taken
        shares[slot] = 0.0
        if total < 1e-14:  # p equals q up to rounding, so the child should not have been rejected
            return int(token)
    return int(_draw_from(p_V, total, uniform(seed, place.position, 0, LAST_STREAM, place.node)))


@kernel(borrows=True)
def _draw_from(p_V: NDArray[np.float64], total: float, share: float) -> int:
    """Draw a token with probability p_V / total. share: a uniform number in (0, 1)."""
    target = share * total
    last, before = 0, 0.0
    for token in range(len(p_V)):
        if p_V[token] > 0.0:
            last = token
            before += p_V[token]
            if before > target:
                break
    return last
