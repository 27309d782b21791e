"""The figures of samples and their table. Pure.

Invariant: acceptance lengths are ratios of sums over replies; a ratio of rates is the median over questions, since a
slow minute of the machine spoils few of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import mean, median

import msgspec

from decoding.bench.tables.figures import Figures
from decoding.bench.tables.table import table

PREFIXES = (1, 4, 8, 16, 32, 64)
PLAIN = "none"


class Samples(msgspec.Struct, frozen=True, kw_only=True):
    """One contestant's replies to one question. figures: of the first of so many, for each of `PREFIXES` that the
    samples reach. fingerprint: of all tokens."""

    figures: dict[int, Figures]
    fingerprint: int


Found = Mapping[str, Sequence[Samples]]  # by method, question by question


def differing(found: Found) -> list[str]:
    """The methods that did not give the tokens of plain decoding."""
    expected = [each.fingerprint for each in found[PLAIN]]
    return [label for label, own in found.items() if [each.fingerprint for each in own] != expected]


def render(found: Found, answers: Sequence[Sequence[int | None]], results: Sequence[int | None]) -> str:
    """A row for each method: for each number of samples, τ and tokens/s over `none`'s. Below, the share of problems
    that these solve. answers: to each question, of its replies in order; results: the right ones."""
    prefixes = list(found[PLAIN][0].figures)
    head = [f"{count}: {what}" for count in prefixes for what in ("τ", "× none")]
    rows = []
    for label, own in found.items():
        cells = [cell for count in prefixes for cell in _cells(own, found[PLAIN], count)]
        last = [each.figures[prefixes[-1]] for each in own]
        rows.append([label, *cells, f"{sum(each.drafted for each in last) / sum(each.forwards for each in last):.1f}"])
    solved = "; ".join(_solved(answers, results, count) for count in prefixes)
    told = [table(["method", *head, "nodes a step"], rows), f"Right answers, the same with every method: {solved}."]
    if others := differing(found):
        told.append(f"**Tokens differ from `none`**: {', '.join(others)}.")
    return "\n\n".join(told)


def _cells(own: Sequence[Samples], plain: Sequence[Samples], count: int) -> tuple[str, str]:
    pairs = [(each.figures[count], other.figures[count]) for each, other in zip(own, plain, strict=True)]
    tau = sum(mine.tokens for mine, _ in pairs) / sum(mine.forwards for mine, _ in pairs)
    return f"{tau:.2f}", f"{median(mine.tokens_per_second / other.tokens_per_second for mine, other in pairs):.2f}"


def _solved(answers: Sequence[Sequence[int | None]], results: Sequence[int | None], count: int) -> str:
    pairs = [(given[:count], result) for given, result in zip(answers, results, strict=True)]
    alone = mean(answer == result for given, result in pairs for answer in given)
    voted = mean(majority(given) == result for given, result in pairs)
    passed = mean(result in given for given, result in pairs)
    return f"{count}: {alone:.0%} alone, {voted:.0%} by majority, {passed:.0%} pass@{count}"


def majority(answers: Sequence[int | None]) -> int | None:
    """The most common answer; the earliest wins a tie."""
    told = Counter(answer for answer in answers if answer is not None)
    return told.most_common(1)[0][0] if told else None
