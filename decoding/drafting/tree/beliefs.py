"""How likely a drafted token is to be accepted, given the evidence it was drafted on.

Owns one request's running estimates, one per class of evidence. What the classes are and what each is worth at first
is its source's; of trees' shapes nothing is known here. Invariant: `chances[c] == accepted[c] / tried[c]`.
"""

from __future__ import annotations

from typing import NamedTuple

import numba as nb
import numpy as np
from numpy.typing import NDArray

from decoding.core.tree import DraftTree, IntArray, Source, Verdict

_PRIOR_WEIGHT = 16.0  # how many observations the prior counts for
_CONTEXT = int(Source.CONTEXT)


class Beliefs(NamedTuple):
    """float32 [C] each: expected accepted and tried nodes by class, and their ratio."""

    accepted: NDArray[np.float32]
    tried: NDArray[np.float32]
    chances: NDArray[np.float32]


def start_beliefs(prior_chances: NDArray[np.float32]) -> Beliefs:
    """A request's at its start, by measured chances, float32 [C]; what its own text changes is learned as it runs."""
    tried = np.full(len(prior_chances), _PRIOR_WEIGHT, np.float32)
    return Beliefs(prior_chances * tried, tried, prior_chances.copy())


def learn(beliefs: Beliefs, classes: IntArray, tree: DraftTree, verdict: Verdict) -> None:
    """Count every node whose parent was accepted; classes: int32 [n], the evidence of each node.

    A node that is not copied itself counts only where no copied sibling was accepted: its chance is the one that
    remains when the copy fails.
    """
    _learn(beliefs, classes, tree.parents, tree.sources, verdict.path)


@nb.njit(cache=True, forceinline=True)
def step_of(value: float, bounds: tuple[float, ...]) -> int:
    """Which of the falling `bounds` is the first that `value` reaches; how many there are, where it reaches none."""
    for step, bound in enumerate(bounds):
        if value >= bound:
            return step
    return len(bounds)


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
