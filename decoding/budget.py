"""How many nodes to draft: what a row costs on this machine against what a node has lately earned.

Pure arithmetic. A step over n rows at contexts L costs t = base + row * sum(n) + key * sum(n * L) seconds
(calibrated at start), and a budget of n nodes is expected to emit 1 + gain * log2(1 + n) tokens, where each
request learns its own gain. `choose_budgets` maximises expected tokens per second over all requests at once,
so trees shrink as the batch grows, and one request's luck is never another's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

INITIAL_GAIN = 0.35  # about tau 2 at 16 nodes: optimistic, so that a new request tries
SMOOTHING = 0.15
PROBE_INTERVAL = 24  # plain steps between two tries of a request for which drafting does not pay
PROBE_NODES = 4


@dataclass(frozen=True, slots=True)
class CostCurve:
    """Seconds of one step: base + row * rows + key * (rows summed over their context lengths)."""

    base: float
    row: float
    key: float

    def step_seconds(self, rows: Sequence[int], contexts: Sequence[int]) -> float:
        """A step in which request i brings rows[i] rows at contexts[i] committed tokens."""
        keys = sum(count * context for count, context in zip(rows, contexts, strict=True))
        return self.base + self.row * sum(rows) + self.key * keys

    def plain_seconds(self, emitted: int, contexts: Sequence[int]) -> float:
        """Seconds plain decoding needs for `emitted` tokens at this load: one row per request a step."""
        return emitted / len(contexts) * self.step_seconds([1] * len(contexts), contexts)


def fit_cost_curve(samples: Sequence[tuple[int, int, float]]) -> CostCurve:
    """Least squares on (rows, context, seconds) samples, errors relative, no coefficient negative."""
    rows, contexts, seconds = (np.array(column, np.float64) for column in zip(*samples, strict=True))
    terms = np.stack((np.ones_like(rows), rows, rows * contexts), axis=1) / seconds[:, None]
    used = [0, 1, 2]
    while True:
        solution, *_ = np.linalg.lstsq(terms[:, used], np.ones(len(seconds)), rcond=None)
        if len(used) == 1 or solution.min() >= 0:
            break
        used.pop(int(solution.argmin()))
    coefficients = np.zeros(3)
    coefficients[used] = solution
    return CostCurve(*(float(max(value, 0.0)) for value in coefficients))


@dataclass(slots=True)
class YieldEstimate:
    """A running estimate of tokens gained per doubling of the tree; `plain_steps` counts since the last draft."""

    gain: float = INITIAL_GAIN
    plain_steps: int = 0

    def update(self, num_drafted: int, num_accepted: int) -> None:
        if num_drafted == 0:
            self.plain_steps += 1
            return
        self.plain_steps = 0
        self.gain += SMOOTHING * (num_accepted / math.log2(1 + num_drafted) - self.gain)

    def expected_accepted(self, num_drafted: int) -> float:
        return self.gain * math.log2(1 + num_drafted)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A request that decodes in this step. fixed: the budget it asked for, None to let us choose."""

    estimate: YieldEstimate
    context: int
    limit: int
    fixed: int | None = None


def choose_budgets(curve: CostCurve, candidates: Sequence[Candidate]) -> list[int]:
    """Budgets that maximise expected tokens per second of this step.

    With rate = tokens / seconds, one more node pays while gain / (ln 2 * (1 + n)) > rate * cost of a row;
    the rate follows from the budgets, so a few rounds of substitution settle both. A request whose best
    tree would not beat plain decoding gets 0, and `PROBE_NODES` once in a while to notice better times.
    """
    if all(candidate.fixed is not None for candidate in candidates):
        return [min(candidate.fixed or 0, candidate.limit) for candidate in candidates]
    contexts = [candidate.context for candidate in candidates]
    budgets = [candidate.fixed or 0 for candidate in candidates]
    for _ in range(4):
        tokens = sum(
            1 + candidate.estimate.expected_accepted(budget)
            for candidate, budget in zip(candidates, budgets, strict=True)
        )
        rate = tokens / curve.step_seconds([budget + 1 for budget in budgets], contexts)
        budgets = [_best_size(curve, candidate, rate) for candidate in candidates]
    return [_or_probe(candidate, budget) for candidate, budget in zip(candidates, budgets, strict=True)]


def _best_size(curve: CostCurve, candidate: Candidate, rate: float) -> int:
    if candidate.fixed is not None:
        return min(candidate.fixed, candidate.limit)
    row_seconds = curve.row + curve.key * candidate.context
    worth = candidate.estimate.gain / (math.log(2) * rate * max(row_seconds, 1e-9))
    return max(0, min(candidate.limit, round(worth - 1)))


def _or_probe(candidate: Candidate, budget: int) -> int:
    if budget == 0 and candidate.fixed is None and candidate.estimate.plain_steps >= PROBE_INTERVAL:
        return min(PROBE_NODES, candidate.limit)
    return budget
