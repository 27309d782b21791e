"""What steps cost where they run: base and row of a cost curve, followed step by step.

A curve measured at start is measured on forwards alone, in a loop that finds everything in the processor's caches; the
steps of an engine do not. Pure arithmetic: least squares over (rows, seconds), the late steps counting most.
Invariant: a step moves the line as if it had taken at most `MOST_SURPRISE` times what the line said.
"""

from __future__ import annotations

from dataclasses import replace

from decoding.costs.curve import LEAST_ROW_SHARE, CostCurve

FORGETTING = 1 / 128  # of what is known, at every step
FIRST_STEPS = 64.0  # that the measured curve counts for
FIRST_ROWS = (1.0, 17.0)
MOST_SURPRISE = 1.5


class RowCost:
    """curve: as measured; it is gone on from."""

    def __init__(self, curve: CostCurve) -> None:
        self._measured = self.curve = curve
        self._weight = self._rows = self._seconds = self._rows_rows = self._rows_seconds = 0.0
        for rows in FIRST_ROWS:
            self._add(FIRST_STEPS / len(FIRST_ROWS), rows, curve.base + curve.row * rows)

    def note(self, rows: float, key_rows: float, seconds: float) -> None:
        """A step of so many rows took so long; key_rows: its rows, each times the tokens it looked back at."""
        expected = self.curve.base + self.curve.row * rows
        seconds -= self._measured.key * key_rows
        seconds = min(max(seconds, expected / MOST_SURPRISE), expected * MOST_SURPRISE)
        self._add(1.0, rows, seconds)
        spread = self._rows_rows - self._rows * self._rows / self._weight
        if spread <= 0:
            return
        row = (self._rows_seconds - self._rows * self._seconds / self._weight) / spread
        base = (self._seconds - row * self._rows) / self._weight
        if base > 0:
            self.curve = replace(self._measured, base=base, row=max(row, LEAST_ROW_SHARE * base))

    def _add(self, weight: float, rows: float, seconds: float) -> None:
        keep = 1 - FORGETTING
        self._weight = keep * self._weight + weight
        self._rows = keep * self._rows + weight * rows
        self._seconds = keep * self._seconds + weight * seconds
        self._rows_rows = keep * self._rows_rows + weight * rows * rows
        self._rows_seconds = keep * self._rows_seconds + weight * rows * seconds
