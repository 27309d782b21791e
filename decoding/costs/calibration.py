"""Measures what a step costs on this machine, by running the model on chains of several sizes.

At start, in well under a second for a small model and a few steps' time for a large one, and on while nobody waits: a
moment in which the machine was busy must not be believed for good, so of every size the quickest time counts,
until forwards are run in another way.
Knows nothing of requests.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from decoding.costs.curve import CostCurve, fit_cost_curve

ROUNDS = 8
SECONDS_LIMIT = 2.0  # after which no further round is begun at start; two always are
LATER_ROUNDS = 16
LONGEST_LATER = 0.2  # seconds of one forward: a request that comes just then waits for it

Measure = Callable[[int, int], float]  # seconds of a forward of so many rows at such a context


class Calibration:
    """sizes: (rows, context); measure: times one of them."""

    def __init__(self, sizes: Sequence[tuple[int, int]], measure: Measure) -> None:
        self._sizes = sizes
        self._measure = measure
        self._quickest: dict[tuple[int, int], float] = {}
        self._outdated: set[tuple[int, int]] = set()
        self._num_later = 0
        deadline = time.perf_counter() + SECONDS_LIMIT
        for round_number in range(ROUNDS):
            if round_number >= 2 and time.perf_counter() > deadline:
                break
            for size in sizes:  # every round times every size, so that a busy moment spoils no size alone
                self._time(size)
        self.curve = self._fit()

    @property
    def is_done(self) -> bool:
        return self._num_later == LATER_ROUNDS * len(self._sizes)

    @property
    def quickest(self) -> float:
        """Seconds of the shortest forward."""
        return min(self._quickest.values())

    def refine(self) -> None:
        """Time one more size, unless that was done often enough or would take long."""
        if self.is_done:
            return
        size = self._sizes[self._num_later % len(self._sizes)]
        if self._quickest[size] <= LONGEST_LATER:
            self._time(size)
            self.curve = self._fit()
        self._num_later += 1

    def start_over(self) -> None:
        """Let the next times replace the quickest ones so far: forwards run in another way from now on."""
        self._outdated = set(self._sizes)
        self._num_later = 0

    def _time(self, size: tuple[int, int]) -> None:
        seconds = self._measure(*size)
        known = float("inf") if size in self._outdated else self._quickest.get(size, float("inf"))
        self._quickest[size] = min(known, seconds)
        self._outdated.discard(size)

    def _fit(self) -> CostCurve:
        return fit_cost_curve([(rows, context, seconds) for (rows, context), seconds in self._quickest.items()])
