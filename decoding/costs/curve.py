"""What a step costs on this machine: seconds by rows and by the keys they read. Pure arithmetic.

A forward reads all weights once, so a few rows take hardly longer than one; beyond them arithmetic takes the time, and
rows cost alike (the roofline of Williams et al., 2009). A step over n rows at contexts L costs base + few_row *
min(sum(n), few) + row * max(0, sum(n) - few) + key * sum(n * L) seconds, and something for each request.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

LEAST_ROW_SHARE = 0.005
FEW = (0, 2, 3, 4, 6, 8, 12, 16, 32, 64, 128)  # rows that may cost less than those beyond them


@dataclass(frozen=True, slots=True)
class CostCurve:
    """Seconds of one step: base + few_row for each of the first `few` rows + row for each other + key * (rows summed
    over their context lengths) + request * requests.

    look: seconds beside the forward of each look for a tree, with what a forward behind it takes longer; draft: of each
    tree, beyond its nodes'; of a draft model's forward, growing. head: the part of `row` that goes into its logits,
    which rows of a prompt can do without; harvest: what a row takes more whose likeliest tokens the stores learn.
    """

    base: float
    row: float
    key: float
    look: float = 0.0
    draft: float = 0.0
    head: float = 0.0
    request: float = 0.0
    harvest: float = 0.0
    few: int = 0
    few_row: float = 0.0

    def step_seconds(self, rows: Sequence[float], contexts: Sequence[int]) -> float:
        """A step in which request i brings rows[i] rows at contexts[i] committed tokens."""
        keys = sum(count * context for count, context in zip(rows, contexts, strict=True))
        return self.base + self.request * len(rows) + self.rows_seconds(sum(rows)) + self.key * keys

    def rows_seconds(self, num_rows: float) -> float:
        """What so many rows take beside what every step does and the keys they read."""
        num_few = min(num_rows, self.few)
        return self.few_row * num_few + self.row * (num_rows - num_few)

    def plain_seconds(self, emitted: int, contexts: Sequence[int]) -> float:
        """Seconds plain decoding needs for `emitted` tokens at this load: one row per request a step."""
        return emitted / len(contexts) * self.step_seconds([1] * len(contexts), contexts)


@dataclass(slots=True)
class Curves:
    """curve: of a step; draft_curve: of a draft forward, where there is a draft model. Both as of now."""

    curve: CostCurve
    draft_curve: CostCurve | None = None


def fit_cost_curve(samples: Sequence[tuple[int, int, float]]) -> CostCurve:
    """Least squares on (rows, context, seconds) samples, errors relative, no coefficient negative, with as many of the
    rows among the few as the samples speak for.

    A row is never free: a measurement that says so was disturbed, and `LEAST_ROW_SHARE` of the base is put in.
    """
    rows, contexts, seconds = (np.array(column, np.float64) for column in zip(*samples, strict=True))
    fits = []
    for few in FEW:
        if few < rows.max():
            # Every row costs what one of the few does, and those beyond them something more.
            terms = np.stack((np.ones_like(rows), rows, np.maximum(0.0, rows - few), rows * contexts), axis=1)
            fits.append((*_non_negative(terms / seconds[:, None]), few))
    (base, few_row, more, key), _, few = min(fits, key=lambda fit: fit[1])
    few_row = max(few_row, LEAST_ROW_SHARE * base)
    return CostCurve(base, few_row + more, key, few=few, few_row=few_row)


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
