"""Measures what a step costs on this machine, by running the model on chains of several sizes.

At start, in well under a second for a small model and a few steps' time for a large one, and on while nobody waits: a
moment in which the machine was busy must not be believed for good, so of every size the quickest time counts.
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
        self._measure: Measure | None = measure
        self._quickest = dict.fromkeys(sizes, float("inf"))
        deadline = time.perf_counter() + SECONDS_LIMIT
        for round_number in range(ROUNDS):
            if round_number >= 2 and time.perf_counter() > deadline:
                break
            for size in sizes:  # every round times every size, so that a busy moment spoils no size alone
                self._time(size, measure)
        self.curve = self._fit()
        self._num_later = 0

    def go_on(self) -> None:
        """Time one more size, unless that was done often enough or would take long."""
        if self._measure is None:
            return
        size = self._sizes[self._num_later % len(self._sizes)]
        if self._quickest[size] <= LONGEST_LATER:
            self._time(size, self._measure)
            self.curve = self._fit()
        self._num_later += 1
        if self._num_later == LATER_ROUNDS * len(self._sizes):
            self._measure = None  # and the slots it holds

    def _time(self, size: tuple[int, int], measure: Measure) -> None:
        self._quickest[size] = min(self._quickest[size], measure(*size))

    def _fit(self) -> CostCurve:
        return fit_cost_curve([(rows, context, seconds) for (rows, context), seconds in self._quickest.items()])
