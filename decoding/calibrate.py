"""Measures what a step costs on this machine, by running the model on chains of several sizes.

At start, in well under a second for a small model and a few steps' time for a large one, and on while nobody waits: a
moment in which the machine was busy must not be believed for good, so of every size the quickest time counts.
Knows nothing of requests.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np

from decoding.batch import Segment, pack
from decoding.budget import CostCurve, fit_cost_curve
from decoding.kv_store import KvHandle, KvStore
from decoding.model import TargetModel

ROWS = (1, 2, 4, 8, 16, 32, 64)
SHORT_CONTEXT, LONG_CONTEXT = 8, 512
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


def calibrate(model: TargetModel) -> Calibration:
    """Time forwards of chains of `ROWS` rows at two contexts."""
    contexts = [SHORT_CONTEXT, min(LONG_CONTEXT, model.max_model_len // 2)]
    store = model.new_store(sum(contexts) + len(contexts) * max(ROWS))
    handles = {context: _prefilled(model, store, context) for context in contexts}
    sizes = [(rows, context) for context in handles for rows in ROWS if context + rows <= model.max_model_len]
    return Calibration(sizes, lambda rows, context: _seconds(model, store, handles[context], rows))


def _prefilled(model: TargetModel, store: KvStore, context: int) -> KvHandle:
    handle = store.allocate(context + max(ROWS))
    assert handle is not None
    _seconds(model, store, handle, context)
    store.commit(handle, np.arange(context, dtype=np.int32))
    return handle


def _seconds(model: TargetModel, store: KvStore, handle: KvHandle, num_rows: int) -> float:
    tokens = np.arange(num_rows, dtype=np.int32) % model.vocab_size
    started = time.perf_counter()
    logits_RV = model.forward(pack([Segment(handle, tokens)], store))
    logits_RV[0, 0].item()  # waits for a device to finish
    return time.perf_counter() - started
