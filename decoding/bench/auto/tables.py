"""Renders the comparison as Markdown and computes its ratios. Pure.

Invariant: a ratio is the median over rounds of the ratio of two runs in the same round.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median

import msgspec

from decoding.bench.auto.runs import Run
from decoding.bench.comparison import AGAIN
from decoding.bench.variant import NONE
from decoding.drafting.registry import AUTO

LEVEL, AHEAD, LEAST = 0.97, 1.05, 0.98  # of the best single method, likewise, and of `none`


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """All runs of one setting, round by round; a round has one run of every method."""

    target: str
    workload: str
    temperature: float
    at_once: int
    rounds: list[list[Run]]

    @property
    def methods(self) -> list[str]:
        return [run.method for run in self.rounds[0]]

    @property
    def singles(self) -> list[str]:
        return [method for method in self.methods if method not in (NONE, AGAIN, AUTO)]

    @property
    def best_single(self) -> str:
        return max(self.singles, key=lambda method: self.ratio(method, NONE))

    @property
    def differing(self) -> list[str]:
        """The methods that did not give the tokens of `none`."""
        expected = next(run.fingerprint for run in self.rounds[0] if run.method == NONE)
        return sorted({run.method for runs in self.rounds for run in runs if run.fingerprint != expected})

    def middle(self, method: str, figure: Callable[[Run], float]) -> float:
        return median(figure(_of(runs, method)) for runs in self.rounds)

    def ratio(self, method: str, other: str, figure: Callable[[Run], float] = lambda run: run.rate) -> float:
        return median(figure(_of(runs, method)) / figure(_of(runs, other)) for runs in self.rounds)

    def first_ratio(self) -> float:
        """The rate of first replies of `auto` over that of the method that is best at them."""

        def first(run: Run) -> float:
            return run.first_rate

        return self.ratio(AUTO, max(self.singles, key=lambda method: self.ratio(method, NONE, first)), first)


def _of(runs: Sequence[Run], method: str) -> Run:
    return next(run for run in runs if run.method == method)


def render(measured: Sequence[Measured]) -> str:
    """A table and a summary for each target."""
    parts = []
    for target in dict.fromkeys(each.target for each in measured):
        found = [each for each in measured if each.target == target]
        parts += [f"**{target}**", _table(found), _summary(found)]
    different = [f"{', '.join(each.differing)} on {each.workload}" for each in measured if each.differing]
    return "\n\n".join([*parts, *([f"**Tokens differ from `none`**: {'; '.join(different)}."] if different else [])])


def _table(measured: Sequence[Measured]) -> str:
    singles = list(dict.fromkeys(method for each in measured for method in each.singles))
    head = [
        "workload",
        "T",
        "at once",
        "none, tokens/s",
        "again",
        *singles,
        AUTO,
        "nodes",
        "of the best",
        "first reply",
    ]
    lines = [f"| {' | '.join(head)} |", f"| --- |{' --: |' * (len(head) - 1)}"]
    for each in measured:
        best = each.best_single
        ratios = [each.ratio(method, NONE) if method in each.methods else None for method in singles]
        cells = ["" if ratio is None else f"{ratio:.2f}" for ratio in ratios]
        cells[singles.index(best)] = f"**{cells[singles.index(best)]}**"
        row = [
            each.workload,
            f"{each.temperature:g}",
            f"{each.at_once}",
            f"{each.middle(NONE, lambda run: run.rate):.0f}",
            f"{each.ratio(AGAIN, NONE):.2f}",
            *cells,
            f"{each.ratio(AUTO, NONE):.2f}",
            f"{each.middle(AUTO, lambda run: run.nodes_per_step):.1f}",
            f"{each.ratio(AUTO, best):.2f}",
            f"{each.first_ratio():.2f}" if each.at_once == 1 else "",
        ]
        lines.append(f"| {' | '.join(row)} |")
    return "\n".join(lines)


def _summary(measured: Sequence[Measured]) -> str:
    of_best = [each.ratio(AUTO, each.best_single) for each in measured]
    of_none = [each.ratio(AUTO, NONE) for each in measured]
    level, ahead = (sum(ratio >= least for ratio in of_best) for least in (LEVEL, AHEAD))
    above = sum(ratio >= LEAST for ratio in of_none)
    return (
        f"`auto` has at least {LEVEL} of the best single method on {level} of {len(measured)} rows and {AHEAD} or more "
        f"on {ahead}; median {median(of_best):.2f}, least {min(of_best):.2f}. It has at least {LEAST} of `none` on "
        f"{above}, at the least {min(of_none):.2f}. `none` differs from itself by "
        f"{max(abs(each.ratio(AGAIN, NONE) - 1) for each in measured):.2f} at most, "
        f"{median(abs(each.ratio(AGAIN, NONE) - 1) for each in measured):.2f} in the median."
    )
