"""Measures a model's forwards on this machine: the quickest number of threads, and the seconds of chains by size.

Knows nothing of requests. Invariant: the cost curve is timed on the chosen number of threads, never during a trial.
"""

from __future__ import annotations

import time
from dataclasses import replace
from itertools import cycle
from typing import Protocol

import msgspec
import numpy as np
import torch

from decoding.cache.batch import LogitRows, Segment, pack
from decoding.cache.block_pool import num_blocks_for
from decoding.cache.kv_cache import KvCache
from decoding.cache.kv_store import KvRows, KvStore
from decoding.costs.calibration import LONGEST_LATER, Calibration, Clock
from decoding.costs.price import CostCurve, ExpertCosts
from decoding.model.device.runner import Runner
from decoding.model.experts.cpu_experts import Mixtures
from decoding.model.kept.measurements import KeptMeasurements
from decoding.model.threads import ThreadChoice

ROWS = (1, 2, 4, 6, 8, 12, 16, 32, 64)
DEVICE_ROWS = (*ROWS, 128, 256, 512, 1024)  # on a device a step costs alike up to some hundred tokens
SHORT_CONTEXT, LONG_CONTEXT = 8, 512
LONG_STRIDE = 3  # of the sizes, every third is timed at the long context too
HEAD_ROUNDS = 5
DEVICE_HEAD_ROWS = 256  # on a device a few tokens' logits take as long as one's, which reads all weights of the head
MOST_HEAD = 0.8  # the head's largest share of a token's cost: a larger measurement was disturbed
STEP_ROWS = (1, 16)  # threads are chosen by these steps: a plain one and one with a tree


class ModelTimings(msgspec.Struct, frozen=True):
    """threads: the quickest number. head: seconds of one token's logits. quickest: (tokens, context, seconds). experts:
    (tokens, experts that they chose)."""

    threads: int
    head: float
    quickest: list[tuple[int, int, float]]
    experts: list[tuple[int, float]] = []


class Timed(Runner, Protocol):
    """A model that can be timed."""

    device: torch.device
    fingerprint: str
    threads: ThreadChoice
    vocab_size: int
    max_model_len: int

    @property
    def mixtures(self) -> Mixtures | None: ...

    def new_store(self, num_blocks: int) -> KvStore: ...

    def runner_over(self, store: KvStore, most_keys: int, most_rows: int) -> Runner: ...


class Chains:
    """A cache of its own, and forwards of chains after contexts in it: captured ones where there are any.

    A context's keys and values are zeros, which take as long to read as those of a prompt, and nobody waits for one.
    """

    def __init__(
        self, model: Timed, contexts: tuple[int, ...], most_rows: int, clock: Clock, is_captured: bool = True
    ) -> None:
        self._clock = clock
        self._vocab_size = model.vocab_size
        cache = KvCache(model.new_store(sum(num_blocks_for(context + most_rows) for context in contexts)))
        self._store = cache.store
        self._store.clear()
        self._runner: Runner = model
        if is_captured:
            self._runner = model.runner_over(cache.store, max(contexts) + most_rows, most_rows)
        self._rows: dict[int, KvRows] = {}
        for context in contexts:
            rows = self._rows[context] = cache.new_rows(context + most_rows)
            rows.length = context

    def seconds(self, num_rows: int, context: int, logits: LogitRows = "all") -> float:
        """The seconds of a forward of `num_rows` tokens after `context`. The tokens are not committed."""
        tokens = np.arange(num_rows, dtype=np.int32) % self._vocab_size
        started = self._clock()
        forward = self._runner.launch(pack([Segment(self._rows[context], tokens, None, logits)], self._store))
        forward.seconds()  # waits for a device to finish
        return self._clock() - started


class Timing:
    """One model's threads and costs: measured at start or read from an earlier start, and refined while idle.

    kept: stores them between starts; None stores nothing.
    """

    def __init__(self, model: Timed, kept: KeptMeasurements | None = None, clock: Clock = time.perf_counter) -> None:
        self._kept, self._clock = kept, clock
        self._fingerprint = f"{model.fingerprint} {model.max_model_len} {model.threads.candidates}"
        self._threads = model.threads
        self._contexts = (SHORT_CONTEXT, min(LONG_CONTEXT, model.max_model_len // 2))
        self._model = model
        self._is_on_device = model.device.type != "cpu"
        self._steps = None if self._is_on_device else Chains(model, (SHORT_CONTEXT,), max(STEP_ROWS), clock)
        self._step_rows = cycle(STEP_ROWS)
        known = kept.read(self._fingerprint, ModelTimings) if kept is not None else None
        if known is None:
            self._threads.settle(self._step)
        else:
            self._threads.begin_with(known.threads)
        self._num_threads = self._threads.chosen
        self._chains: Chains | None = None
        self._experts = dict(known.experts) if known else {}
        quickest = {(rows, context): seconds for rows, context, seconds in known.quickest} if known else None
        self._calibration = Calibration(self._sizes(), self._seconds, quickest, clock, self._experts)
        self._head = self._head_seconds() if known is None else known.head
        if self._is_on_device:
            self._chains = None  # its room is the cache's
        self._keep()

    @property
    def curve(self) -> CostCurve:
        curve = self._calibration.curve
        curve = replace(curve, head=min(self._head, MOST_HEAD * curve.token))
        mixtures = self._model.mixtures
        if mixtures is None or curve.experts is None:
            return curve
        experts = ExpertCosts(curve.experts.seconds, mixtures.num_chosen, mixtures.num_experts)
        return replace(curve, experts=experts)

    def refine(self) -> None:
        """Continue to measure for a moment: on a CPU, which others may have kept busy before."""
        if self._is_on_device:
            return
        if min(self._calibration.quickest.values()) <= LONGEST_LATER and self._threads.refine(self._step):
            return
        if self._threads.chosen != self._num_threads:
            self._num_threads = self._threads.chosen
            self._calibration.start_over()
        if self._calibration.refine():
            self._chains = None  # frees its slots
            self._keep()

    def _keep(self) -> None:
        if self._kept is not None:
            quickest = [(*size, seconds) for size, seconds in self._calibration.quickest.items()]
            self._kept.write(
                self._fingerprint, ModelTimings(self._num_threads, self._head, quickest, list(self._experts.items()))
            )

    def _head_seconds(self) -> float:
        """The seconds of one token's logits: the difference between forwards with all logits and with the last only.
        Captured forwards compute all of them in any case."""
        num_rows, rounds = max(STEP_ROWS), range(HEAD_ROUNDS)
        if self._model.device.type != "cpu":
            num_rows = min(DEVICE_HEAD_ROWS, self._model.max_model_len - SHORT_CONTEXT)
        chains = Chains(self._model, (SHORT_CONTEXT,), num_rows, self._clock, is_captured=False)
        kinds: tuple[LogitRows, ...] = ("all", "last")
        times = [[chains.seconds(num_rows, SHORT_CONTEXT, kind) for kind in kinds] for _ in rounds]
        with_all, with_last = (min(column) for column in zip(*times, strict=True))
        return max(0.0, with_all - with_last) / (num_rows - 1)

    def _step(self) -> float:
        assert self._steps is not None, "a device has no threads to choose"
        return self._steps.seconds(next(self._step_rows), SHORT_CONTEXT)

    def _seconds(self, num_rows: int, context: int) -> float:
        while self._threads.count != self._threads.chosen:
            self._step()  # finish the trial first
        if self._chains is None:
            most_rows = max(num_rows for num_rows, _ in self._sizes())
            self._chains = Chains(self._model, self._contexts, most_rows, self._clock)
        seconds = self._chains.seconds(num_rows, context)
        if self._model.mixtures is not None:
            self._experts[num_rows] = self._model.mixtures.num_distinct()
        return seconds

    def _sizes(self) -> list[tuple[int, int]]:
        short, long = self._contexts
        known = ROWS if self._model.device.type == "cpu" else DEVICE_ROWS
        sizes = [(rows, short) for rows in known] + [(rows, long) for rows in known[::LONG_STRIDE]]
        return [(rows, context) for rows, context in sizes if context + rows <= self._model.max_model_len]
