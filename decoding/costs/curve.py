"""What a step costs on this machine: seconds by rows and by the keys they read. Pure arithmetic.

A step over n rows at contexts L costs base + row * sum(n) + key * sum(n * L) seconds, and something for each request.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

LEAST_ROW_SHARE = 0.005


@dataclass(frozen=True, slots=True)
class CostCurve:
    """Seconds of one step: base + row * rows + key * (rows summed over their context lengths) + request * requests.

    draft: seconds beside the forward for each tree, beyond its nodes'; of a draft model's forward, growing. head: the
    part of `row` that goes into its logits, which rows of a prompt can do without; harvest: what a row takes more whose
    likeliest tokens the stores learn.
    """

    base: float
    row: float
    key: float
    draft: float = 0.0
    head: float = 0.0
    request: float = 0.0
    harvest: float = 0.0

    def step_seconds(self, rows: Sequence[float], contexts: Sequence[int]) -> float:
        """A step in which request i brings rows[i] rows at contexts[i] committed tokens."""
        keys = sum(count * context for count, context in zip(rows, contexts, strict=True))
        return self.base + self.request * len(rows) + self.row * sum(rows) + self.key * keys

    def plain_seconds(self, emitted: int, contexts: Sequence[int]) -> float:
        """Seconds plain decoding needs for `emitted` tokens at this load: one row per request a step."""
        return emitted / len(contexts) * self.step_seconds([1] * len(contexts), contexts)


@dataclass(slots=True)
class Curves:
    """curve: of a step; draft_curve: of a draft forward, where there is a draft model. Both as of now."""

    curve: CostCurve
    draft_curve: CostCurve | None = None


def fit_cost_curve(samples: Sequence[tuple[int, int, float]]) -> CostCurve:
    """Least squares on (rows, context, seconds) samples, errors relative, no coefficient negative.

    A row is never free: a measurement that says so was disturbed, and `LEAST_ROW_SHARE` of the base is put in.
    """
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
    base, row, key = (float(max(value, 0.0)) for value in coefficients)
    return CostCurve(base, max(row, LEAST_ROW_SHARE * base), key)
