"""The candidates of one tree node: what a source expects after its path, in the order they are drafted.

Owns the draft law q: the source's probabilities at the request's temperature under its filters, and the
Gumbel-top-k order of its tokens. Knows nothing of trees' shapes.
Invariant: candidates are in falling order of log q plus noise, so the first k are k draws without replacement.
"""

from __future__ import annotations

import math
from typing import NamedTuple, Protocol

import numpy as np
from numba.extending import register_jitable
from numpy.typing import NDArray

from decoding.core.sampling_params import SamplingParams
from decoding.core.tree import Draws
from decoding.kernels.cpu.sampling.noise import gumbel
from decoding.kernels.numba_kernel import kernel
from decoding.sampling.law import law_of
from decoding.stores.successor_table import NO_TOKEN, NUM_SUCCESSORS

COUPLED, INDEPENDENT, DETERMINISTIC = 0, 1, 2
CANDIDATES = {"coupled": COUPLED, "independent": INDEPENDENT, "deterministic": DETERMINISTIC}
DRAFT_STREAM = 1  # noise of draws that must know nothing of the target's own


class Expected(Protocol):
    """A source's table: its entries' likeliest next tokens, in falling order."""

    @property
    def ids(self) -> NDArray[np.int32]: ...  # int32 [E, K]

    @property
    def probabilities(self) -> NDArray[np.float32]: ...  # float32 [E, K]


class DraftLaw(NamedTuple):
    """How candidates are drawn from what is expected: the request's `Law`, and the way of ordering."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    seed: np.uint64
    order: int


class Candidates(NamedTuple):
    """Per node, in draft order: ids int32 [n, 10]; shares float64 [n, 10], each one's part of q; scores float64
    [n, 10], log q plus noise. sizes int32 [n]: how many there are; the rest means nothing, but for scores of -inf that
    are still as allocated."""

    ids: NDArray[np.int32]
    shares: NDArray[np.float64]
    scores: NDArray[np.float64]
    sizes: NDArray[np.int32]


def draft_law(sampling: SamplingParams, order: int) -> DraftLaw:
    return DraftLaw(*law_of(sampling), order if sampling.temperature > 0 else DETERMINISTIC)


@register_jitable
def allocate_candidates(num_nodes: int) -> Candidates:
    return Candidates(
        ids=np.full((num_nodes, NUM_SUCCESSORS), NO_TOKEN, np.int32),
        shares=np.zeros((num_nodes, NUM_SUCCESSORS), np.float64),
        scores=np.full((num_nodes, NUM_SUCCESSORS), -np.inf, np.float64),
        sizes=np.zeros(num_nodes, np.int32),
    )


def laws_of(candidates: Candidates, num_nodes: int) -> Draws:
    """What the children of the first `num_nodes` nodes were drawn from."""
    is_known = np.arange(NUM_SUCCESSORS)[None, :] < candidates.sizes[:num_nodes, None]
    return Draws(candidates.ids[:num_nodes], np.where(is_known, candidates.shares[:num_nodes], 0.0))


@kernel(forceinline=True, borrows=True)
def temper(table: Expected, entry: int, law: DraftLaw, shares: NDArray[np.float64], node: int) -> int:
    """Fill the node's `shares` with q: an entry's probabilities at the law's temperature, filtered, summing to one;
    return how many. At temperature 0 they stay those of temperature 1."""
    exponent = 1.0 / law.temperature if law.temperature > 0.0 else 1.0
    first = np.float64(table.probabilities[entry, 0])
    size = 0
    while size < NUM_SUCCESSORS and table.probabilities[entry, size] > 0.0:
        ratio = np.float64(table.probabilities[entry, size]) / first
        shares[node, size] = ratio if exponent == 1.0 else math.exp(math.log(ratio) * exponent)
        size += 1
    if law.temperature > 0.0:
        size = _num_kept(shares[node, :size], law)
    total = shares[node, :size].sum()
    for index in range(size):
        shares[node, index] /= total
    return size


@kernel(forceinline=True, borrows=True)
def _num_kept(shares: NDArray[np.float64], law: DraftLaw) -> int:
    """How many of the falling `shares`, which begin with 1, top-k, then top-p, then min-p keep."""
    if law.top_k > 0:
        shares = shares[: law.top_k]
    total, before, kept = shares.sum(), 0.0, 0
    while kept < len(shares) and shares[kept] > 0.0 and shares[kept] >= law.min_p:
        if law.top_p < 1.0 and before >= law.top_p * total:
            break
        before += shares[kept]
        kept += 1
    return kept


@kernel(forceinline=True, borrows=True)
def rank_candidates(
    table: Expected, entry: int, law: DraftLaw, place: tuple[int, int, int], candidates: Candidates
) -> None:
    """Fill in a node's candidates from an entry of `table`; below 0 there is none.

    place: (node, position, step): the absolute position its children take, and that of the tree's own first draw."""
    node, position, step = place
    ids, shares, scores = candidates.ids, candidates.shares, candidates.scores
    size = temper(table, entry, law, shares, node) if entry >= 0 else 0
    candidates.sizes[node] = size
    for index in range(size):
        token, share, noise = table.ids[entry, index], shares[node, index], 0.0
        if law.order == COUPLED:
            noise = gumbel(law.seed, position, token)
        elif law.order == INDEPENDENT:  # its draws are its own: nothing else in this or another step shares their noise
            noise = gumbel(law.seed, step, token, DRAFT_STREAM, node)
        score, slot = math.log(share) + noise, index
        while slot > 0 and scores[node, slot - 1] < score:
            ids[node, slot], shares[node, slot] = ids[node, slot - 1], shares[node, slot - 1]
            scores[node, slot] = scores[node, slot - 1]
            slot -= 1
        ids[node, slot], shares[node, slot], scores[node, slot] = token, share, score
