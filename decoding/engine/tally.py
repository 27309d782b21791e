"""Counting while a step runs: phase times, and drafted and accepted tokens by source, depth and method.

Owns the numbers of the step under way; `RequestStats` and `StepStats` are filled from it.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Sequence

from decoding.core.stats import DraftOutcome, MethodCounts, StepStats
from decoding.core.tree import DraftTree, IntArray, Source
from decoding.costs.price import CostCurve
from decoding.engine.scheduler import Reuse
from decoding.engine.sequence_step import SequenceStep
from decoding.engine.step_costs import HostStep

SOURCE_NAMES = [source.name.lower() for source in Source]


def outcome_of(tree: DraftTree, emitted: IntArray) -> DraftOutcome | None:
    """What a verified tree counts for, of whose nodes these were emitted; None for one of the root alone, which drafted
    nothing."""
    if tree.num_drafted == 0:
        return None
    sources = tree.sources.tobytes()  # counting in bytes costs a fraction of what counting in arrays does
    accepted = bytes([sources[node] for node in emitted.tolist()])
    return DraftOutcome(tree.num_drafted, len(accepted), _by_source(sources[1:]), _by_source(accepted))


def _by_source(sources: bytes) -> list[tuple[str, int]]:
    return [(SOURCE_NAMES[source], sources.count(source)) for source in set(sources)]


class StepTally:
    """Times the phases of one step: `end_phase` closes the one under way."""

    def __init__(self) -> None:
        self._started = self._phase_started = time.perf_counter()
        self._phase_seconds: defaultdict[str, float] = defaultdict(float)
        self._forward_seconds = 0.0
        self._plain: Counter[tuple[str, int]] = Counter()  # trees of a root, by method and budget
        self._counts: defaultdict[str, MethodCounts] = defaultdict(MethodCounts)
        self._contexts: list[int] = []
        self._refusals: dict[str, int] = {}
        self._probing = 0.0, 0

    @property
    def seconds(self) -> float:
        """Since the step began."""
        return time.perf_counter() - self._started

    def end_phase(self, name: str) -> None:
        now = time.perf_counter()
        self._phase_seconds[name] += now - self._phase_started
        self._phase_started = now

    def end_sample(self, forward_seconds: float) -> None:
        """Close the phase of sampling, which a device began once the forward was through that it was given before."""
        self.end_phase("sample")
        self._forward_seconds = forward_seconds
        waited = min(max(0.0, forward_seconds - self._phase_seconds["forward"]), self._phase_seconds["sample"])
        self._phase_seconds["forward"] += waited
        self._phase_seconds["sample"] -= waited

    def end_draft(self, steps: Sequence[SequenceStep]) -> None:
        """Close the phase of drafting, of which the draft model's forwards took their part, and count the
        sequences that it can do nothing more for, by reason."""
        self.end_phase("draft")
        self._phase_seconds["draft_model"] = sum(step.cost.seconds for step in steps)
        self._phase_seconds["draft"] -= self._phase_seconds["draft_model"]
        self._refusals = Counter(step.refusal for step in steps if step.refusal is not None)

    def note_probing(self, seconds: float, num_probed: int) -> None:
        """Of so many sequences the stores were asked, which took so long, of the phase under way."""
        self._probing = seconds, num_probed

    @property
    def num_probed(self) -> int:
        return self._probing[1]

    def host_step(self, tokens: Sequence[int], num_harvested: int) -> HostStep:
        """What the phases so far took beside the forwards, which a device may have run meanwhile. tokens: that each
        request's tree had; num_harvested: of these those whose logits were learned from."""
        by_phase, (probing, num_probed) = self._phase_seconds, self._probing
        whole = sum(by_phase.values())
        beside = whole - max(by_phase["forward"] + by_phase["draft_model"], min(self._forward_seconds, whole))
        num_trees = sum(count > 1 for count in tokens)
        drafting = by_phase["draft"] + by_phase["observe"]
        return HostStep(beside, len(tokens), num_probed, probing, num_trees, drafting, num_harvested)

    def add(self, step: SequenceStep, context: int, outcome: DraftOutcome | None) -> None:
        """Note a sequence that emitted tokens after `context` others, and what its tree counts for."""
        self._contexts.append(context)
        method, budget = step.drafter.active.choice.method, step.budget.max_nodes if step.budget else 0
        if outcome is None:
            self._plain[method, budget] += step.num_emitted
            return
        counts = self._counts[method]
        counts.forwards += 1
        counts.emitted += step.num_emitted
        counts.budgets.add(budget)
        counts.trees.add(outcome.drafted)
        counts.count(outcome)

    def stats(self, num_rows: int, num_prefill_rows: int, reuse: Reuse, curve: CostCurve) -> StepStats:
        """The finished step."""
        for (method, budget), number in self._plain.items():  # each of these trees emitted one token
            counts = self._counts[method]
            counts.forwards += number
            counts.emitted += number
            counts.budgets.add(budget, number)
            counts.trees.add(0, number)
        emitted = sum(counts.emitted for counts in self._counts.values())
        return StepStats(
            rows=num_rows,
            prefill_rows=num_prefill_rows,
            step_seconds=self.seconds,
            plain_seconds=curve.plain_seconds(emitted, self._contexts) if self._contexts else 0.0,
            phase_seconds=self._phase_seconds,
            counts_by_method=self._counts,
            refusals=self._refusals,
            prefix_queries=reuse.queries,
            prefix_hits=reuse.hits,
            preemptions=reuse.preemptions,
        )
