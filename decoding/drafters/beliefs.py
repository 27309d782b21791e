"""How likely a drafted token is to be accepted, given the evidence it was drafted on.

Owns one request's running estimates, one per class of evidence, started from measured priors.
Knows nothing of trees' shapes. Invariant: `chances[c] == accepted[c] / tried[c]`.
"""

from __future__ import annotations

from typing import NamedTuple

import numba as nb
import numpy as np
from numpy.typing import NDArray

from decoding.tree import DraftTree, IntArray, Source
from decoding.verify import Verdict

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


def start_beliefs(temperature: float) -> Beliefs:
    """The priors for a request that samples at `temperature`."""
    chances = _prior_chances(temperature)
    tried = np.full(NUM_CLASSES, _PRIOR_WEIGHT, np.float32)
    return Beliefs(chances * tried, tried, chances)


def learn(beliefs: Beliefs, classes: IntArray, tree: DraftTree, verdict: Verdict) -> None:
    """Count every node whose parent was accepted; classes: int32 [n], the evidence of each node.

    An adjacency node counts only where no copied sibling was accepted: its chance is the one that
    remains when the copy fails.
    """
    _learn(beliefs, classes, tree.parents, tree.sources, verdict.path)


def _prior_chances(temperature: float) -> NDArray[np.float32]:
    """Acceptance rates by class, measured by replay on the bundled model, greedy and at temperature 0.7."""
    context = np.array([_FIRST, _LISTED, _ABSENT, _UNKNOWN], np.float32).T
    agreeing = np.stack((context, context + (1 - context) * np.array([0.5, 0.1, 0.1, 0.5], np.float32)), axis=2)
    sampled = min(1.0, temperature / _SAMPLED_TEMPERATURE)
    scores = (1 - sampled) * np.array(_GREEDY_SCORES) + sampled * np.array(_SAMPLED_SCORES)
    return np.concatenate((agreeing.ravel(), [0.3], scores.ravel())).astype(np.float32)


_FIRST = (0.70, 0.80, 0.85, 0.90, 0.92, 0.94, 0.97)
_LISTED = (0.20, 0.25, 0.30, 0.35, 0.40, 0.45, 0.60)
_ABSENT = (0.20, 0.15, 0.12, 0.15, 0.20, 0.20, 0.40)
_UNKNOWN = (0.50, 0.60, 0.65, 0.70, 0.80, 0.85, 0.90)
_GREEDY_SCORES = (
    (0.70, 0.55, 0.50, 0.40, 0.28, 0.10, 0.04, 0.02, 0.01),
    (0.80, 0.70, 0.60, 0.50, 0.35, 0.13, 0.05, 0.02, 0.008),
)
_SAMPLED_SCORES = _GREEDY_SCORES
_SAMPLED_TEMPERATURE = 0.7


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
