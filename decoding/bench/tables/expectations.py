"""Checks a run's figures against what we expect of the engine. Pure.

Invariant: an expectation whose figures are missing is left out, never counted as met.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from decoding.bench.comparison import Comparison
from decoding.bench.shapes import ShapeResult
from decoding.bench.tables.table import best, other_methods, spine_rows

WIDE_BUDGET = 60
MIN_SPINE_RATIO = 1.5
MIN_PLAIN_RATIO = 1.8
FAST_WORKLOADS = ("code", "reasoning")


@dataclass(frozen=True, slots=True)
class Expectation:
    sentence: str
    is_met: bool


def check_comparisons(comparisons: Sequence[Comparison]) -> list[Expectation]:
    """Expects equal tokens everywhere, the best acceptance length at 60 nodes, and the speed-up on code and
    reasoning."""
    found = []
    for one in comparisons:
        where = f"{one.workload} at temperature {one.temperature:g}"
        told = "the tokens of none" if not one.differing else f"other tokens from {', '.join(one.differing)}"
        found.append(Expectation(f"{where}: every method gives {told}", not one.differing))
        found += _check_tau(one, where)
        fastest = best(spine_rows(one), one.none)
        if fastest and one.workload in FAST_WORKLOADS:
            ratio = fastest.ratio_to(one.none)
            sentence = f"{where}: spine at its best budget ({fastest.budget}) runs {ratio:.2f} times none"
            found.append(Expectation(f"{sentence}, asked {MIN_SPINE_RATIO}", ratio >= MIN_SPINE_RATIO))
    return found


def _check_tau(one: Comparison, where: str) -> list[Expectation]:
    mine = one.find("spine", WIDE_BUDGET)
    rival = max(other_methods(one, WIDE_BUDGET), key=lambda row: row.tau, default=None)
    if mine is None or rival is None:
        return []
    sentence = f"{where}: τ at {WIDE_BUDGET} nodes is {mine.tau:.2f} with spine, {rival.tau:.2f} with {rival.label}"
    return [Expectation(sentence, mine.tau >= rival.tau)]


def check_shapes(results: Sequence[ShapeResult]) -> list[Expectation]:
    """Expects plain decoding to keep up with `generate`."""
    return [
        Expectation(
            f"{result.parameters / 1e6:.0f}M parameters in {result.dtype}: none runs {result.ratio:.2f} times "
            f"generate, asked {MIN_PLAIN_RATIO}",
            result.ratio >= MIN_PLAIN_RATIO,
        )
        for result in results
    ]
