"""How likely a drafted token is to be accepted, given the evidence it was drafted on.

Owns one request's running estimates, one per class of evidence, started from measured priors.
Knows nothing of trees' shapes. Invariant: `chances[c] == accepted[c] / tried[c]`.
"""

from __future__ import annotations

from typing import NamedTuple

import numba as nb
import numpy as np
from numpy.typing import NDArray

from decoding.core.tree import DraftTree, IntArray, Source
from decoding.core.verdict import Verdict

NUM_SUFFIX_CLASSES = 7  # 3, 4, 5, 6-7, 8-11, 12-19 and 20 or more tokens shared with the copied occurrence
NUM_AGREEMENTS = 4  # the copied token among the adjacency successors: first, another, absent; no entry
NUM_SCORE_CLASSES = 9
POOLED = NUM_SUFFIX_CLASSES * NUM_AGREEMENTS * 2  # every copied token, where confidence is left out
NUM_CONTEXT_CLASSES = POOLED + 1
NUM_CLASSES = NUM_CONTEXT_CLASSES + 2 * NUM_SCORE_CLASSES

_PRIOR_WEIGHT = 16.0  # how many observations the prior counts for
_CONTEXT = int(Source.CONTEXT)


class Beliefs(NamedTuple):
    """float32 [NUM_CLASSES] each: expected accepted and tried nodes by class, and their ratio."""

    accepted: NDArray[np.float32]
    tried: NDArray[np.float32]
    chances: NDArray[np.float32]


def start_beliefs() -> Beliefs:
    """The priors; what a request's own temperature changes is learned as it runs."""
    chances = _prior_chances()
    tried = np.full(NUM_CLASSES, _PRIOR_WEIGHT, np.float32)
    return Beliefs(chances * tried, tried, chances)


def learn(beliefs: Beliefs, classes: IntArray, tree: DraftTree, verdict: Verdict) -> None:
    """Count every node whose parent was accepted; classes: int32 [n], the evidence of each node.

    An adjacency node counts only where no copied sibling was accepted: its chance is the one that
    remains when the copy fails.
    """
    _learn(beliefs, classes, tree.parents, tree.sources, verdict.path)


# Acceptance rates measured by replays of the bundled model, rounded. Copied tokens by suffix class, where the
# adjacency table has the token first, further down, not at all, or has no entry; successors by tier and score class.
_COPIED = (
    (0.55, 0.80, 0.82, 0.88, 0.92, 0.95, 0.98),
    (0.20, 0.27, 0.25, 0.50, 0.50, 0.60, 0.75),
    (0.20, 0.15, 0.12, 0.15, 0.20, 0.20, 0.40),
    (0.50, 0.60, 0.65, 0.70, 0.80, 0.85, 0.90),
)
_CONSENSUS_BONUS = (0.5, 0.1, 0.1, 0.5)  # of what is missing to 1, per agreement
_POOLED_CHANCE = 0.3  # the paper's initial spine acceptance
_SUCCESSORS = (
    (0.70, 0.58, 0.50, 0.30, 0.20, 0.11, 0.06, 0.03, 0.014),
    (0.88, 0.68, 0.50, 0.32, 0.22, 0.12, 0.06, 0.025, 0.008),
)


def _prior_chances() -> NDArray[np.float32]:
    """float32 [NUM_CLASSES], in the order of `context_class` and `score_class`."""
    alone = np.array(_COPIED).T
    copied = np.stack((alone, alone + (1 - alone) * np.array(_CONSENSUS_BONUS)), axis=2)
    return np.concatenate((copied.ravel(), [_POOLED_CHANCE], np.ravel(_SUCCESSORS))).astype(np.float32)


@nb.njit(cache=True)
def context_class(suffix_len: int, agreement: int, has_consensus: bool) -> int:
    """The class of a copied token; `agreement` as listed at NUM_AGREEMENTS."""
    suffix_class = suffix_len - 3
    if suffix_len >= 20:
        suffix_class = 6
    elif suffix_len >= 12:
        suffix_class = 5
    elif suffix_len >= 8:
        suffix_class = 4
    elif suffix_len >= 6:
        suffix_class = 3
    return (suffix_class * NUM_AGREEMENTS + agreement) * 2 + (1 if has_consensus else 0)


@nb.njit(cache=True)
def score_class(score: float, is_bigram: bool) -> int:
    """The class of an adjacency successor: its tier and its stored probability in nine steps."""
    score_class = 8
    for step, bound in enumerate((0.9, 0.75, 0.5, 0.3, 0.15, 0.07, 0.03, 0.01)):
        if score >= bound:
            score_class = step
            break
    return NUM_CONTEXT_CLASSES + (NUM_SCORE_CLASSES if is_bigram else 0) + score_class


@nb.njit(cache=True)
def _learn(beliefs: Beliefs, classes: IntArray, parents: IntArray, sources: NDArray[np.int8], path: IntArray) -> None:
    is_accepted = np.zeros(len(parents), np.bool_)
    is_copied = np.zeros(len(parents), np.bool_)  # accepted nodes whose accepted child is a copied one
    for node in path:
        is_accepted[node] = True
        if node > 0 and sources[node] == _CONTEXT:
            is_copied[parents[node]] = True
    for node in range(1, len(parents)):
        parent = parents[node]
        if is_accepted[parent] and (sources[node] == _CONTEXT or not is_copied[parent]):
            kind = classes[node]
            beliefs.tried[kind] += 1
            beliefs.accepted[kind] += is_accepted[node]
            beliefs.chances[kind] = beliefs.accepted[kind] / beliefs.tried[kind]
