"""Renders replies as Markdown tables in the form of STAND's own. Pure.

Invariant: acceptance lengths and rates are ratios of sums over replies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from decoding.bench.stand.trajectories import (
    Question,
    Trajectory,
    acceptance_length,
    accuracy,
    coverage,
    majority_accuracy,
    tokens_per_second,
)

PREFIXES = (1, 4, 8, 16)
PLAIN = "none"


@dataclass(frozen=True, slots=True)
class Replies:
    """For each contender `count` replies to each question, question by question."""

    questions: list[Question]
    found: dict[str, list[Trajectory]]
    count: int

    def first(self, label: str, k: int) -> list[Trajectory]:
        """The first k replies to every question."""
        return [reply for place, reply in enumerate(self.found[label]) if place % self.count < k]

    def is_same(self, label: str) -> bool:
        """Whether a contender gave the tokens of `none`; True if `none` was not measured."""
        plain = self.found.get(PLAIN, self.found[label])
        pairs = zip(self.found[label], plain, strict=True)
        return all(mine.fingerprint == other.fingerprint for mine, other in pairs)


def render_sequence(replies: Replies) -> str:
    """A row for each contender: for each number of trajectories, τ and tokens/s over `none`'s."""
    prefixes = [k for k in PREFIXES if k <= replies.count]
    head = " | ".join(f"{k} in sequence: τ | × none" for k in prefixes)
    lines = [f"| method | {head} | nodes a step |", "| --- |" + " --: |" * (2 * len(prefixes) + 1)]
    for label in replies.found:
        cells = []
        for k in prefixes:
            mine = replies.first(label, k)
            cells += [f"{acceptance_length(mine):.2f}", _ratio(mine, replies.first(PLAIN, k))]
        lines.append(_row(label, [*cells, _nodes(replies.found[label])], replies.is_same(label)))
    return "\n".join((*lines, "", _accuracies(replies, prefixes)))


def render_batches(found: Mapping[int, Replies]) -> str:
    """A row for each contender: for each batch size, τ and tokens/s over `none`'s."""
    head = " | ".join(f"batch {count}: τ | × none" for count in found)
    lines = [f"| method | {head} |", "| --- |" + " --: |" * (2 * len(found))]
    first = next(iter(found.values()))
    for label in first.found:
        cells = []
        for replies in found.values():
            mine = replies.found[label]
            cells += [f"{acceptance_length(mine):.2f}", _ratio(mine, replies.found[PLAIN])]
        same = all(replies.is_same(label) for replies in found.values())
        lines.append(_row(label, cells, same))
    return "\n".join((*lines, "", *(_accuracies(replies, [count]) for count, replies in found.items())))


def render_plain(replies: Replies) -> str:
    """A row for each contender: τ, tokens/s, nodes a step, accepted share of the nodes."""
    lines = ["| method | τ | tokens/s | nodes a step | accepted share |", "| --- | --: | --: | --: | --: |"]
    for label, mine in replies.found.items():
        accepted = sum(reply.accepted for reply in mine) / max(1, sum(reply.drafted for reply in mine))
        rate = median(_rates(mine).values())
        cells = [f"{acceptance_length(mine):.3f}", f"{rate:.0f}", _nodes(mine), f"{accepted:.1%}"]
        lines.append(_row(label, cells, replies.is_same(label)))
    return "\n".join(lines)


def _row(label: str, cells: Sequence[str], is_same: bool) -> str:
    name = label if is_same else f"{label} (other tokens)"
    return f"| {name} | {' | '.join(cells)} |"


def _ratio(mine: Sequence[Trajectory], plain: Sequence[Trajectory]) -> str:
    """The median over questions of the ratio of both rates, since a slow minute of the machine spoils few questions."""
    rates, plain_rates = _rates(mine), _rates(plain)
    return f"{median(rates[number] / plain_rates[number] for number in rates):.2f}"


def _rates(replies: Sequence[Trajectory]) -> dict[int, float]:
    """Tokens per second by question."""
    by_question: dict[int, list[Trajectory]] = {}
    for reply in replies:
        by_question.setdefault(reply.question, []).append(reply)
    return {number: tokens_per_second(own) for number, own in by_question.items()}


def _nodes(mine: Sequence[Trajectory]) -> str:
    return f"{sum(reply.drafted for reply in mine) / sum(reply.forwards for reply in mine):.1f}"


def _accuracies(replies: Replies, prefixes: Sequence[int]) -> str:
    label = next(iter(replies.found))
    parts = []
    for k in prefixes:
        mine = replies.first(label, k)
        alone, voted, any_right = (each(mine, replies.questions) for each in (accuracy, majority_accuracy, coverage))
        parts.append(f"{k}: {alone:.0%} alone, {voted:.0%} by majority, {any_right:.0%} in one at least")
    return f"Right answers of `{label}`, the same for all that give its tokens: {'; '.join(parts)}."
