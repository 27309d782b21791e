"""Verification by rejection: standard speculative sampling over children drawn without replacement.

The other way to choose the token after each node, for comparison with the literature: exact in law, but a reply
depends on what was drafted. `verify.walk` follows its tokens as it does the target's own.
Invariant: a node's children are tested in index order, the order in which they were drawn from q.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numba as nb
import numpy as np
from numpy.typing import NDArray

from decoding.core.request import Request
from decoding.core.tree import DraftTree, IntArray
from decoding.sampling.kernel import UNREACHED, nucleus
from decoding.sampling.logits_processors import Processing
from decoding.sampling.noise import uniform

ACCEPT_STREAM, LAST_STREAM = 2, 3  # noise of the tests, and of the token drawn when all of them failed


class Law(NamedTuple):
    """What a request asks of its tokens, and where its noise starts: the position of the tree's first draw."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    seed: np.uint64
    position: int


def choose_by_rejection(
    rows_RV: NDArray[np.float32], tree: DraftTree, request: Request, processing: Processing | None = None
) -> IntArray:
    """int32 [n]: the token after every node on the accepted path, UNREACHED elsewhere.

    rows_RV: the logits of the tree's rows; processing: what is done to those on the path.
    tree.draws says what the children were drawn from. Child x is taken if
    p(x) > r q(x); else p becomes norm(max(p - q, 0)) and q loses x; when no child is taken the token is drawn from
    what is left of p (Leviathan et al. 2023; without replacement: Sequoia, section 3.2).
    """
    assert tree.draws is not None
    asked = request.sampling
    law = Law(asked.temperature, asked.top_k, asked.top_p, asked.min_p, np.uint64(asked.seed), request.num_tokens)
    chosen = np.full(len(tree), UNREACHED, np.int32)
    node = 0
    while True:
        row = rows_RV[node] if processing is None else processing.row(rows_RV[node])
        draws = (tree.draws.ids[node], tree.draws.shares[node])
        chosen[node], child = _choose_at(row, node, tree.tokens, tree.parents, *draws, law)
        if child < 0:
            return chosen
        node = child
        if processing is not None:
            processing.note(int(tree.tokens[node]))


@nb.njit(cache=True)
def _choose_at(
    row: NDArray[np.float32],
    node: int,
    tokens: IntArray,
    parents: IntArray,
    draw_ids: NDArray[np.int32],
    draw_shares: NDArray[np.float64],
    law: Law,
) -> tuple[int, int]:
    """The token after a node, and the child it leads to, -1 for none."""
    children = np.nonzero(parents == node)[0]
    token = _emit(target_law(row, law), tokens[children], draw_ids, draw_shares.copy(), law, node)
    for child in children:
        if tokens[child] == token:
            return token, int(child)
    return token, -1


@nb.njit(cache=True)
def target_law(row: NDArray[np.float32], law: Law) -> NDArray[np.float64]:
    """float64 [V]: the row's processed distribution, as `sampling` defines it, for a temperature above 0."""
    best = row.max()
    p_V = np.zeros(len(row), np.float64)
    floor = math.log(law.min_p) if law.min_p > 0.0 else -np.inf
    if law.top_k > 0 or law.top_p < 1.0:
        kept = nucleus(row, best, law.temperature, law.top_k, law.top_p)
    else:
        kept = np.arange(len(row))
    total = 0.0
    for token in kept:
        score = (np.float64(row[token]) - np.float64(best)) / law.temperature
        if score >= floor:
            p_V[token] = math.exp(score)
            total += p_V[token]
    return p_V / total


@nb.njit(cache=True)
def _emit(
    p_V: NDArray[np.float64],
    children: IntArray,
    ids: NDArray[np.int32],
    shares: NDArray[np.float64],
    law: Law,
    node: int,
) -> int:
    """The first child that passes its test, or a draw from what the tests leave of p. Uses up p_V and shares."""
    total = 1.0  # p_V sums to `total`, shares to `left`: both stay unnormalised
    for index in range(len(children)):
        token = children[index]
        left = shares.sum()
        slot = 0
        while ids[slot] != token:
            slot += 1
        if p_V[token] / total > uniform(law.seed, law.position, index, ACCEPT_STREAM, node) * shares[slot] / left:
            return int(token)
        scale = total / left
        for other in range(len(ids)):
            if shares[other] > 0.0:
                taken = min(p_V[ids[other]], scale * shares[other])
                p_V[ids[other]] -= taken
                total -= taken
        shares[slot] = 0.0
        if total < 1e-14:  # p was q but for rounding, so nothing was to be rejected
            return int(token)
    return int(_draw(p_V, total, law, node))


@nb.njit(cache=True)
def _draw(p_V: NDArray[np.float64], total: float, law: Law, node: int) -> int:
    """A token with chance p_V / total."""
    target = uniform(law.seed, law.position, 0, LAST_STREAM, node) * total
    last, before = 0, 0.0
    for token in range(len(p_V)):
        if p_V[token] > 0.0:
            last = token
            before += p_V[token]
            if before > target:
                break
    return last
