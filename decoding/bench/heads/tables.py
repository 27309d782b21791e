"""Renders the comparison of heads and draft models as Markdown, in the form of GTO's Table 1. Pure.

Invariant: a cell without figures is empty, and an average covers all workloads or is empty.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import mean

from decoding.bench.heads.book import Finding, Size
from decoding.bench.tables.table import table

Place = tuple[str, float]  # a workload and a temperature
_MEGABYTE = 2**20


@dataclass(frozen=True, slots=True)
class Seed:
    """One contender's findings: acceptance lengths, speeds, and size."""

    taus: dict[Place, float] = field(default_factory=dict)
    speeds: dict[Place, Finding] = field(default_factory=dict)
    size: Size | None = None

    def tau(self, place: Place) -> float | None:
        return self.taus.get(place)

    def speedup(self, place: Place) -> float | None:
        """Tokens a second over plain decoding's, the median over rounds."""
        found = self.speeds.get(place)
        return found.figures.ratio_to(found.none) if found and found.none else None

    def rate(self, place: Place) -> float | None:
        found = self.speeds.get(place)
        return found.figures.tokens_per_second if found else None

    def plain_rate(self, place: Place) -> float | None:
        found = self.speeds.get(place)
        return found.none.tokens_per_second if found and found.none else None

    def speedup_over(self, other: Seed, place: Place) -> float | None:
        """Tokens a second over another contender's, if both answered in the same rounds."""
        found, against = self.speeds.get(place), other.speeds.get(place)
        is_paired = found is not None and against is not None and found.run == against.run
        return found.figures.ratio_to(against.figures) if found and against and is_paired else None


@dataclass(frozen=True, slots=True)
class Row:
    name: str
    seeds: Sequence[Seed]


Metric = Callable[[Seed, Place], float | None]


def render(rows: Sequence[Row], workloads: Sequence[str], temperatures: Sequence[float]) -> str:
    """Tables of speed-ups and acceptance lengths, tokens a second, and memory."""
    parts = []
    for temperature in temperatures:
        places = [(workload, temperature) for workload in workloads]
        parts += [f"#### Temperature {temperature:g}: × none and τ", _main(rows, places)]
        if any(seed.speeds for row in rows for seed in row.seeds):
            parts += [f"#### Temperature {temperature:g}: tokens a second", _speed(rows, places)]
    parts += ["#### Memory beside the target's", _memory(rows)]
    return "\n\n".join(parts)


def _main(rows: Sequence[Row], places: Sequence[Place]) -> str:
    columns = [f"{workload} {what}" for workload, _ in places for what in ("×", "τ")]
    cells = []
    for row in rows:
        found = [_cell(row, metric, [place]) for place in places for metric in (Seed.speedup, Seed.tau)]
        found += [_cell(row, metric, places) for metric in (Seed.speedup, Seed.tau)]
        cells.append([row.name, *found])
    return table(["drafts with", *columns, "average ×", "average τ"], cells)


def _speed(rows: Sequence[Row], places: Sequence[Place]) -> str:
    first, over = rows[0].seeds[0], f"× {rows[0].name}"

    def against_first(seed: Seed, place: Place) -> float | None:
        return seed.speedup_over(first, place)

    columns = [f"{workload} {what}" for workload, _ in places for what in ("tokens/s", "none's", over)]
    metrics: tuple[tuple[Metric, int], ...] = ((Seed.rate, 0), (Seed.plain_rate, 0), (against_first, 2))
    cells = []
    for row in rows:
        found = [_cell(row, metric, [place], digits) for place in places for metric, digits in metrics]
        cells.append([row.name, *found, _cell(row, against_first, places)])
    return table(["drafts with", *columns, f"average {over}"], cells)


def _memory(rows: Sequence[Row]) -> str:
    columns = ("drafts with", "parameters, M", "weights, MB", "bytes a slot")
    cells = []
    for row in rows:
        size = row.seeds[0].size  # the seeds of a row have the same size
        found = ["", "", ""]
        if size is not None:
            weights = f"{size.weight_bytes / _MEGABYTE:.2f}"
            found = [f"{size.parameters / 1e6:.2f}", weights, str(size.slot_bytes)]
        cells.append([row.name, *found])
    return table(columns, cells)


def _cell(row: Row, metric: Metric, places: Sequence[Place], digits: int = 2) -> str:
    """The mean over places; for several seeds their mean and their range."""
    values = [value for seed in row.seeds if (value := _average([metric(seed, place) for place in places])) is not None]
    if not values:
        return ""
    shown = f"{mean(values):.{digits}f}"
    return shown if len(values) == 1 else f"{shown} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def _average(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return mean(known) if known and len(known) == len(values) else None
