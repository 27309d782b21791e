"""What steps take beyond their forwards, learned from the steps themselves: a line through the latest, robustly.

Pure arithmetic. A forward timed in a loop finds its weights and the host's data in cache; in a step it follows other
work, and has more done beside it. Kinds of steps are held against each other as they come, never new ones against old:
where the machine is slow for a while, all are. Invariant: nothing is less than free.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

WINDOW = 512  # steps that are learned from
EVERY = 128  # steps between two fits
_REWEIGHTINGS = 4  # towards the least absolute errors
_LEAST_ERROR = 0.01  # of a step's seconds: all below weigh alike
_HOLD = 0.5  # that what is known so far weighs, of all steps: where they do not tell, it stays
_KEPT = 0.9  # of what none of the steps had, at each fit: a slow moment must not silence drafting for good


class StepKind(NamedTuple):
    """What a step has beside its forward. requests: that decode in it; looks: for trees; trees: that were grown; nodes:
    that were drafted; harvested: rows that stores learn from; rounds: of the draft model, counted for each sequence."""

    requests: int
    looks: int = 0
    trees: int = 0
    nodes: int = 0
    harvested: int = 0
    rounds: int = 0


class Beside(NamedTuple):
    """Seconds beyond the forwards': of a step, and of each of what `StepKind` counts."""

    step: float = 0.0
    request: float = 0.0
    look: float = 0.0
    tree: float = 0.0
    node: float = 0.0
    harvest: float = 0.0
    round: float = 0.0


class StepFit:
    """beside: as of the latest fit, at first what is given."""

    def __init__(self, beside: Beside) -> None:
        self.beside = beside
        self._num_new = 0
        self._steps: deque[tuple[float, ...]] = deque(maxlen=WINDOW)

    def note(self, kind: StepKind, forward: float, seconds: float) -> bool:
        """A step took so many seconds, its forward should have taken `forward` of them; whether it is time to fit."""
        self._steps.append((1.0 / forward, *(count / forward for count in kind), seconds / forward - 1.0))
        self._num_new += 1
        return self._num_new >= EVERY

    def fit(self) -> None:
        """Learn from the steps so far."""
        self._num_new = 0
        if self._steps:
            steps = np.array(self._steps)
            counts, known = steps[:, :-1], np.array(self.beside)
            known[~counts.any(axis=0)] *= _KEPT
            self.beside = Beside(*_fitted(counts, steps[:, -1], known).tolist())


def _fitted(
    counts: NDArray[np.float64], seconds: NDArray[np.float64], known: NDArray[np.float64]
) -> NDArray[np.float64]:
    """float64 [k]: so that counts [n, k] times it come near the seconds [n], by absolute errors; none is negative."""
    weights, found = np.ones(len(counts)), known
    for _ in range(_REWEIGHTINGS):
        weighted = counts.T * weights
        hold = _HOLD * (weighted * counts.T).sum(axis=1) + 1e-12
        left, right = weighted @ counts + np.diag(hold), weighted @ seconds + hold * known
        found, used = np.zeros(len(known)), np.arange(len(known))
        while len(used) and (solution := np.linalg.solve(left[np.ix_(used, used)], right[used])).min() < 0:
            used = np.delete(used, solution.argmin())
        found[used] = solution
        weights = 1.0 / np.maximum(np.abs(seconds - counts @ found), _LEAST_ERROR)
    return found
