"""Running totals of the engine's step reports, in plain numbers, and the window behind the speedup gauge.

Knows nothing of Prometheus: `exposition` reads the totals at each scrape. Adding a step must take microseconds only.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from itertools import product
from typing import TypeVar

from decoding.core.stats import (
    DRAFTED_SOURCES,
    METHOD_NAMES,
    PHASES,
    REFUSAL_REASONS,
    EngineStats,
    MethodCounts,
    NodeHistogram,
    StepStats,
)
from decoding.worker.messages import StepReport

K = TypeVar("K")
WINDOW_STEPS = 1000
MAX_DEPTH = 64  # deeper tokens count as this depth, so that labels stay bounded


class StepTotals:
    """Counters keyed by label values: method, (method, source) or (method, depth). All are there from the start, but
    for depths beyond the first, of which there may be many.

    plain_seconds and decode_seconds cover the same steps: those that decoded and had no prompt tokens.
    """

    def __init__(self) -> None:
        self._engines: dict[int, EngineStats] = {}  # the last report of each live worker
        self.steps = 0
        self.rows = 0
        self.prefill_rows = 0
        self.prefix_queries = 0
        self.prefix_hits = 0
        self.preemptions = 0
        self.step_seconds = 0.0
        self.decode_seconds = 0.0
        self.plain_seconds = 0.0
        self.phase_seconds = dict.fromkeys(PHASES, 0.0)
        self.refusals = _zeros(REFUSAL_REASONS)
        self.forwards = _zeros(METHOD_NAMES)
        self.emitted = _zeros(METHOD_NAMES)
        self.budgets = {name: NodeHistogram() for name in METHOD_NAMES}
        self.trees = {name: NodeHistogram() for name in METHOD_NAMES}
        self.drafts = _zeros(METHOD_NAMES)
        self.drafted = _zeros(product(METHOD_NAMES, DRAFTED_SOURCES))
        self.accepted = _zeros(product(METHOD_NAMES, DRAFTED_SOURCES))
        self.accepted_by_depth = _zeros((name, 1) for name in METHOD_NAMES)
        self._window: deque[tuple[float, float]] = deque(maxlen=WINDOW_STEPS)

    def add(self, report: StepReport, worker: int = 0) -> None:
        self._engines[worker] = report.engine
        for step in report.steps:
            self._add_step(step)

    def forget_engine(self, worker: int) -> None:
        """Drop the gauges of a worker that died."""
        self._engines.pop(worker, None)

    @property
    def engine(self) -> EngineStats:
        """The gauges, summed over all workers."""
        engines = self._engines.values()
        return EngineStats(
            **{name: sum(getattr(engine, name) for engine in engines) for name in EngineStats.__struct_fields__}
        )

    @property
    def speedup(self) -> float:
        """Plain seconds divided by measured seconds, over the window's steps; 0 before the first decode step."""
        seconds = sum(step for _, step in self._window)
        return sum(plain for plain, _ in self._window) / seconds if seconds else 0.0

    def _add_step(self, step: StepStats) -> None:
        self.steps += 1
        self.rows += step.rows
        self.prefill_rows += step.prefill_rows
        self.prefix_queries += step.prefix_queries
        self.prefix_hits += step.prefix_hits
        self.preemptions += step.preemptions
        self.step_seconds += step.step_seconds
        for phase, seconds in step.phase_seconds.items():
            self.phase_seconds[phase] += seconds
        if step.refusals:
            self.refusals.update(step.refusals)
        if step.plain_seconds > 0 and step.prefill_rows == 0:
            self.plain_seconds += step.plain_seconds
            self.decode_seconds += step.step_seconds
            self._window.append((step.plain_seconds, step.step_seconds))
        for method, counts in step.counts_by_method.items():
            self._add_counts(method, counts)

    def _add_counts(self, method: str, counts: MethodCounts) -> None:
        self.forwards[method] += counts.forwards
        self.emitted[method] += counts.emitted
        self.budgets[method].merge(counts.budgets)
        self.trees[method].merge(counts.trees)
        self.drafts[method] += counts.drafts
        for source, number in counts.drafted_by_source.items():
            self.drafted[method, source] += number
        for source, number in counts.accepted_by_source.items():
            self.accepted[method, source] += number
        for depth, number in enumerate(counts.accepted_by_depth, start=1):
            if number:
                self.accepted_by_depth[method, min(depth, MAX_DEPTH)] += number


def _zeros(keys: Iterable[K]) -> Counter[K]:
    return Counter(dict.fromkeys(keys, 0))
