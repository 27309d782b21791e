"""The candidates of one tree node: what the n-gram store expects after its path, in the order they are drafted.

Owns the draft law q: the stored probabilities at the request's temperature under its filters, and the
Gumbel-top-k order of its tokens. Knows nothing of trees' shapes.
Invariant: candidates are in falling order of log q plus noise, so the first k are k draws without replacement.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numba as nb
import numpy as np
from numpy.typing import NDArray

from decoding.noise import gumbel
from decoding.request import SamplingParams
from decoding.stores.ngram import NO_TOKEN, NUM_SUCCESSORS, NgramArrays
from decoding.tree import Draws

COUPLED, INDEPENDENT, DETERMINISTIC = 0, 1, 2
CANDIDATES = {"coupled": COUPLED, "independent": INDEPENDENT, "deterministic": DETERMINISTIC}
DRAFT_STREAM = 1  # noise of draws that must know nothing of the target's own

NUM_WEIGHT_CLASSES = 10
NUM_CANDIDATE_CLASSES = 4 * NUM_WEIGHT_CLASSES


class DraftLaw(NamedTuple):
    """How candidates are drawn from stored probabilities: the request's sampling, its seed, and the way of ordering."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    seed: np.uint64
    order: int


class Candidates(NamedTuple):
    """Per node, in draft order: ids int32 [n, 10]; shares float64 [n, 10], each one's part of q; weights float32
    [n, 10], how likely each is given the noise. sizes int32 [n]: how many; -1 before the look-up. ngrams int8 [n]."""

    ids: NDArray[np.int32]
    shares: NDArray[np.float64]
    weights: NDArray[np.float32]
    sizes: NDArray[np.int32]
    ngrams: NDArray[np.int8]


def draft_law(sampling: SamplingParams, order: int) -> DraftLaw:
    return DraftLaw(
        sampling.temperature,
        sampling.top_k,
        sampling.top_p,
        sampling.min_p,
        np.uint64(sampling.seed),
        order if sampling.temperature > 0 else DETERMINISTIC,
    )


def allocate_candidates(num_nodes: int) -> Candidates:
    return Candidates(
        ids=np.full((num_nodes, NUM_SUCCESSORS), NO_TOKEN, np.int32),
        shares=np.zeros((num_nodes, NUM_SUCCESSORS), np.float64),
        weights=np.zeros((num_nodes, NUM_SUCCESSORS), np.float32),
        sizes=np.full(num_nodes, -1, np.int32),
        ngrams=np.zeros(num_nodes, np.int8),
    )


def laws_of(candidates: Candidates, num_nodes: int) -> Draws:
    """What the children of the first `num_nodes` nodes were drawn from."""
    is_known = np.arange(NUM_SUCCESSORS)[None, :] < candidates.sizes[:num_nodes, None]
    return Draws(candidates.ids[:num_nodes].copy(), np.where(is_known, candidates.shares[:num_nodes], 0.0))


@nb.njit(cache=True, forceinline=True)  # type: ignore[untyped-decorator]
def candidate_class(ngram: int, weight: float) -> int:
    """The evidence class of a candidate: the length of the n-gram that gave it and its weight in ten steps."""
    step = NUM_WEIGHT_CLASSES - 1
    for index, bound in enumerate((0.99, 0.95, 0.85, 0.7, 0.5, 0.3, 0.15, 0.06, 0.02)):
        if weight >= bound:
            step = index
            break
    return (ngram - 1) * NUM_WEIGHT_CLASSES + step


@nb.njit(cache=True, forceinline=True)  # type: ignore[untyped-decorator]
def temper(probabilities: NDArray[np.float32], law: DraftLaw, shares: NDArray[np.float64]) -> int:
    """Fill `shares` with q: the stored probabilities at the law's temperature, filtered, summing to one; how many.

    Stored probabilities are those of temperature 1, in falling order; at temperature 0 they stay as they are.
    """
    exponent = 1.0 / law.temperature if law.temperature > 0.0 else 1.0
    total = 0.0
    size = 0
    while size < NUM_SUCCESSORS and probabilities[size] > 0.0:
        ratio = np.float64(probabilities[size]) / np.float64(probabilities[0])
        shares[size] = ratio if exponent == 1.0 else math.exp(math.log(ratio) * exponent)
        total += shares[size]
        size += 1
    if law.temperature > 0.0:
        size = _filtered(shares, size, total, law)
    total = 0.0
    for slot in range(size):
        total += shares[slot]
    for slot in range(size):
        shares[slot] /= total
    return size


@nb.njit(cache=True, forceinline=True)  # type: ignore[untyped-decorator]
def _filtered(shares: NDArray[np.float64], size: int, total: float, law: DraftLaw) -> int:
    """How many of the falling `shares` top-k, then top-p, then min-p keep."""
    if law.top_k > 0:
        size = min(size, law.top_k)
        total = 0.0
        for slot in range(size):
            total += shares[slot]
    before, kept = 0.0, 0
    while kept < size and shares[kept] > 0.0 and shares[kept] >= law.min_p * shares[0]:
        if law.top_p < 1.0 and before >= law.top_p * total:
            break
        before += shares[kept]
        kept += 1
    return kept


@nb.njit(cache=True, forceinline=True)  # type: ignore[untyped-decorator]
def rank_candidates(
    table: NgramArrays, found: tuple[int, int], law: DraftLaw, place: tuple[int, int, int], candidates: Candidates
) -> None:
    """Fill in a node's candidates; found: (entry, n). place: (node, position, step): the absolute position its
    children take, and the position of the tree's own first draw."""
    node, position, step = place
    entry, ngram = found
    candidates.sizes[node] = 0
    candidates.ngrams[node] = ngram
    if entry < 0:
        return
    ids, shares, weights = candidates.ids[node], candidates.shares[node], candidates.weights[node]
    size = temper(table.probabilities[entry], law, shares)
    ids[:size] = table.ids[entry, :size]
    candidates.sizes[node] = size
    if law.order == DETERMINISTIC:
        weights[:size] = shares[:size]
        return
    scores = np.empty(NUM_SUCCESSORS, np.float64)
    for slot in range(size):
        if law.order == COUPLED:
            noise = gumbel(law.seed, position, ids[slot])
        else:  # a node's draws are its own: nothing else in this or another step shares their noise
            noise = gumbel(law.seed, step, ids[slot], DRAFT_STREAM, node)
        scores[slot] = math.log(shares[slot]) + noise
    _sort_by_score(scores, ids, shares, size)
    if law.order == COUPLED:
        _weigh(scores, weights, size)
    else:
        weights[:size] = shares[:size]


@nb.njit(cache=True, forceinline=True)  # type: ignore[untyped-decorator]
def _sort_by_score(scores: NDArray[np.float64], ids: NDArray[np.int32], shares: NDArray[np.float64], size: int) -> None:
    for index in range(1, size):
        score, token, share = scores[index], ids[index], shares[index]
        slot = index
        while slot > 0 and scores[slot - 1] < score:
            scores[slot], ids[slot], shares[slot] = scores[slot - 1], ids[slot - 1], shares[slot - 1]
            slot -= 1
        scores[slot], ids[slot], shares[slot] = score, token, share


@nb.njit(cache=True, forceinline=True)  # type: ignore[untyped-decorator]
def _weigh(scores: NDArray[np.float64], weights: NDArray[np.float32], size: int) -> None:
    """Softmax of the falling scores: a wide lead of the first over the second makes it likely to be the target's."""
    total = 0.0
    for slot in range(size):
        weights[slot] = math.exp(scores[slot] - scores[0])
        total += weights[slot]
    for slot in range(size):
        weights[slot] /= total
