"""Measures what a step costs on this machine, by running the model on chains of several sizes.

At start, in well under a second for a small model and a few steps' time for a large one, unless an earlier start did,
and on while nobody waits: a moment in which the machine was busy must not be believed for good, so of every size the
quickest time counts, until forwards are run in another way.
Knows nothing of requests.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from decoding.costs.price import CostCurve, ExpertCosts

ROUNDS = 8
SECONDS_LIMIT = 2.0  # after which no further round is begun at start; two always are
LATER_ROUNDS = 16
BURST = 0.002  # seconds: a small forward after a large one takes half as long again, which steps that are alike do not
LONGEST_LATER = 0.2  # seconds of one forward: a request that comes just then waits for it

LEAST_TOKEN_SHARE = 0.005
FEW = (0, 2, 3, 4, 6, 8, 12, 16, 32, 64, 128, 256, 512)  # tokens that may cost less than those beyond them

Measure = Callable[[int, int], float]  # seconds of a forward of so many rows at such a context
Clock = Callable[[], float]  # seconds


class Calibration:
    """sizes: (rows, context); measure: times one of them; kept: seconds of each as of an earlier start, which are taken
    if they are of all: of those that take too long to be timed anew while nobody waits, each start times the one that
    takes longest for what it is; experts: how many a forward of so many rows has chosen, as they are measured."""

    def __init__(
        self,
        sizes: Sequence[tuple[int, int]],
        measure: Measure,
        kept: Mapping[tuple[int, int], float] | None = None,
        clock: Clock = time.perf_counter,
        experts: Mapping[int, float] | None = None,
    ) -> None:
        self._experts = experts
        self._sizes = sizes
        self._measure = measure
        self._clock = clock
        self._quickest: dict[tuple[int, int], float] = {}
        self._quickest_ever: dict[tuple[int, int], float] = {}  # in whatever way forwards were run
        self.start_over()
        if kept is not None and kept.keys() == set(sizes):
            self._take(kept)
        else:
            self._measure_all()
        self.curve = self._fit()

    def _take(self, kept: Mapping[tuple[int, int], float]) -> None:
        self._quickest.update(kept)
        self._quickest_ever.update(kept)
        curve, long = self._fit(), [size for size in self._sizes if kept[size] > LONGEST_LATER]
        if long:
            slowest = max(long, key=lambda size: kept[size] / curve.step_seconds([size[0]], [size[1]]))
            self._outdated.discard(slowest)
            self._time(slowest)

    def _measure_all(self) -> None:
        deadline = self._clock() + SECONDS_LIMIT
        for round_number in range(ROUNDS):
            if round_number >= 2 and self._clock() > deadline:
                break
            for size in self._sizes:  # every round times every size, so that a busy moment spoils no size alone
                self._time(size)

    @property
    def is_done(self) -> bool:
        return self._num_later == LATER_ROUNDS * len(self._sizes)

    @property
    def quickest(self) -> Mapping[tuple[int, int], float]:
        """Seconds of each size."""
        return self._quickest

    def refine(self) -> bool:
        """Time one more size, unless that was done often enough or would take long; whether it was the last."""
        if self.is_done:
            return False
        size = self._sizes[self._num_later % len(self._sizes)]
        if self._quickest_ever[size] <= LONGEST_LATER:
            self._time(size)
            self.curve = self._fit()
        self._num_later += 1
        return self.is_done

    def start_over(self) -> None:
        """Let the next times replace the quickest ones so far: forwards run in another way from now on."""
        self._outdated = set(self._sizes)
        self._num_later = 0

    def _time(self, size: tuple[int, int]) -> None:
        seconds = spent = self._measure(*size)
        while spent < BURST:
            again = self._measure(*size)
            seconds, spent = min(seconds, again), spent + again
        known = float("inf") if size in self._outdated else self._quickest.get(size, float("inf"))
        self._quickest[size] = min(known, seconds)
        self._quickest_ever[size] = min(self._quickest_ever.get(size, float("inf")), seconds)
        self._outdated.discard(size)

    def _fit(self) -> CostCurve:
        samples = [(rows, context, seconds) for (rows, context), seconds in self._quickest.items()]
        return fit_cost_curve(samples, [self._experts[rows] for rows, *_ in samples] if self._experts else None)


def fit_cost_curve(samples: Sequence[tuple[int, int, float]], experts: Sequence[float] | None = None) -> CostCurve:
    """Least squares on (tokens, context, seconds) samples, errors relative, no coefficient negative, with as many
    tokens among the few as the samples speak for. experts: how many each sample's tokens chose, where there are any.

    A token is never free: a measurement that says so was disturbed, and `LEAST_TOKEN_SHARE` of the base is put in.
    """
    tokens, contexts, seconds = (np.array(column, np.float64) for column in zip(*samples, strict=True))
    fits = []
    for few in FEW:
        if few < tokens.max():
            # Every token costs what one of the few does, and those beyond them something more.
            terms = [np.ones_like(tokens), tokens, np.maximum(0.0, tokens - few), tokens * contexts]
            terms.append(np.zeros_like(tokens) if experts is None else np.array(experts))
            fits.append((*_non_negative(np.stack(terms, axis=1) / seconds[:, None]), few))
    (base, few_token, more, key, expert), _, few = min(fits, key=lambda fit: fit[1])
    few_token = max(few_token, LEAST_TOKEN_SHARE * base)
    curve = CostCurve(base, few_token + more, key, few=few, few_token=few_token)
    return curve if experts is None else replace(curve, experts=ExpertCosts(expert))


def _non_negative(terms: NDArray[np.float64]) -> tuple[tuple[float, ...], float]:
    """The non-negative x for which terms @ x comes nearest to ones, and how far it stays from them."""
    used = list(range(terms.shape[1]))
    while True:
        solution, *_ = np.linalg.lstsq(terms[:, used], np.ones(len(terms)), rcond=None)
        if len(used) == 1 or solution.min() >= 0:
            break
        used.pop(int(solution.argmin()))
    found = np.zeros(terms.shape[1])
    found[used] = np.maximum(solution, 0.0)
    return tuple(found.tolist()), float(np.linalg.norm(terms @ found - 1.0))
