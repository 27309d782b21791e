"""How `auto` does in each setting beside plain decoding and the best single method, and which goals it misses. Pure.

Invariant: the best single method is the one with the highest median over plain decoding, whatever `auto` did.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from decoding.training.public_prompts import PROMPT_SETS
from server.bench.real.figures import AUTO, Ratio, Run, Setting

LEAST_OVER_BEST = 0.97  # in every setting
LEAST_OVER_NONE = 1.0  # in every setting
LEAST_MEDIAN_OVER_BEST = 1.03  # over the settings with one request at a time


@dataclass(frozen=True, slots=True)
class Verdict:
    """over_none, over_best: the speed of `auto` over plain decoding's and over the best single method's. best: None
    where no single method was measured, and over_best then too."""

    setting: Setting
    over_none: float
    best: str | None
    over_best: float | None

    @property
    def misses(self) -> list[str]:
        """What `auto` is too slow beside."""
        found = []
        if self.over_none < LEAST_OVER_NONE:
            found.append(f"{self.over_none:.2f} × none (goal {LEAST_OVER_NONE:g})")
        if self.over_best is not None and self.over_best < LEAST_OVER_BEST:
            found.append(f"{self.over_best:.2f} × {self.best} (goal {LEAST_OVER_BEST:g})")
        return found


def verdict(run: Run, setting: Setting) -> Verdict | None:
    """None where `auto` was not compared with plain decoding."""
    ratios = {method: row.to_plain for method, row in run.of(setting).items() if row.to_plain}
    if AUTO not in ratios:
        return None
    mine = ratios.pop(AUTO)
    best = max(ratios, key=lambda method: ratios[method].times, default=None)
    return Verdict(setting, mine.times, best, None if best is None else _over(mine, ratios[best]))


def missed(run: Run) -> list[str]:
    """A sentence for each goal that the run misses."""
    found = [told for setting in run.settings if (told := verdict(run, setting))]
    sentences = [f"{name_of(told.setting)}: auto is {' and '.join(told.misses)}." for told in found if told.misses]
    return [*sentences, *missed_median(run)]


def missed_median(run: Run) -> list[str]:
    """The sentence on the goal over all rows with one request at a time, where it is missed."""
    alone = [told for setting in run.settings if setting.at_once == 1 and (told := verdict(run, setting))]
    ratios = [told.over_best for told in alone if told.over_best is not None]
    if not ratios or median(ratios) >= LEAST_MEDIAN_OVER_BEST:
        return []
    return [
        f"Over all {len(ratios)} rows with one request at a time the median of auto over the best single method is "
        f"{median(ratios):.2f}; the goal is {LEAST_MEDIAN_OVER_BEST}."
    ]


def name_of(setting: Setting) -> str:
    return f"{PROMPT_SETS[setting.workload].title}, T={setting.temperature:g}, {setting.at_once} at once"


def _over(mine: Ratio, theirs: Ratio) -> float:
    """Group by group where both are known so, else the ratio of both medians."""
    pairs: Sequence[tuple[float | None, float | None]] = ()
    if len(mine.by_group) == len(theirs.by_group):
        pairs = list(zip(mine.by_group, theirs.by_group, strict=True))
    told = [one / other for one, other in pairs if one and other]
    return median(told) if told else mine.times / max(theirs.times, 1e-9)
