"""Counting while a step runs: phase times, and drafted and accepted tokens by source, depth and method.

Owns the numbers of the step under way; `RequestStats` and `StepStats` are filled from it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from decoding.core.stats import DraftCounts, MethodCounts, StepStats
from decoding.core.tree import DraftTree, Source
from decoding.core.verdict import Verdict
from decoding.costs.curve import CostCurve

SOURCE_NAMES = [source.name.lower() for source in Source]


def count_draft(targets: Sequence[DraftCounts], tree: DraftTree, verdict: Verdict) -> None:
    """Add one verified tree to each of `targets`. A tree of the root alone drafted nothing and counts nowhere."""
    num_drafted, num_accepted = tree.num_drafted, verdict.num_accepted
    if num_drafted == 0:
        return
    sources = tree.sources.tobytes()  # counting in bytes costs a fraction of what counting in arrays does
    drafted = _by_source(sources[1:])
    accepted = _by_source(bytes([sources[node] for node in verdict.path[1:].tolist()]))
    for counts in targets:
        counts.drafts += 1
        counts.drafted += num_drafted
        counts.accepted += num_accepted
        by_source = counts.drafted_by_source
        for name, count in drafted:
            by_source[name] = by_source.get(name, 0) + count
        by_source = counts.accepted_by_source
        for name, count in accepted:
            by_source[name] = by_source.get(name, 0) + count
        by_depth = counts.accepted_by_depth
        if len(by_depth) < num_accepted:
            by_depth.extend([0] * (num_accepted - len(by_depth)))
        for depth in range(num_accepted):
            by_depth[depth] += 1


def _by_source(sources: bytes) -> list[tuple[str, int]]:
    return [(SOURCE_NAMES[source], sources.count(source)) for source in set(sources)]


class StepTally:
    """Times the phases of one step: `end_phase` closes the one under way."""

    def __init__(self) -> None:
        self._started = self._phase_started = time.perf_counter()
        self._phase_seconds: dict[str, float] = {}
        self._counts: dict[str, MethodCounts] = {}
        self._contexts: list[int] = []
        self._refusals: dict[str, int] = {}

    @property
    def seconds(self) -> float:
        """Since the step began."""
        return time.perf_counter() - self._started

    def end_phase(self, name: str) -> None:
        now = time.perf_counter()
        self._phase_seconds[name] = now - self._phase_started
        self._phase_started = now

    def add(self, method: str, context: int, num_emitted: int, budget: int, num_drafted: int) -> MethodCounts:
        """Note a request that emitted tokens at `context` committed ones, after a tree of `num_drafted` nodes where
        `budget` were allowed; returns its method's counts."""
        self._contexts.append(context)
        counts = self._counts.get(method)
        if counts is None:
            counts = self._counts[method] = MethodCounts()
        counts.forwards += 1
        counts.emitted += num_emitted
        counts.budgets.add(budget)
        counts.trees.add(num_drafted)
        return counts

    def note_refusal(self, reason: str) -> None:
        self._refusals[reason] = self._refusals.get(reason, 0) + 1

    def stats(self, num_rows: int, num_prefill_rows: int, curve: CostCurve) -> StepStats:
        """The finished step."""
        emitted = sum(counts.emitted for counts in self._counts.values())
        return StepStats(
            rows=num_rows,
            prefill_rows=num_prefill_rows,
            step_seconds=self.seconds,
            plain_seconds=curve.plain_seconds(emitted, self._contexts) if self._contexts else 0.0,
            phase_seconds=self._phase_seconds,
            counts_by_method=self._counts,
            refusals=self._refusals,
        )
