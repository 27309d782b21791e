"""From timed replies to the numbers of the table. Pure; a ratio is computed here and nowhere else.

Invariant: counts are pooled over replies before they are divided; only ratios to another contestant are
taken round by round, because the machine's speed drifts.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

import msgspec
import numpy as np

from decoding.bench.contestant import Reply


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """Sums over one contestant's replies to one workload, and each round's tokens per second, in round order."""

    label: str
    budget: int | None
    tokens: int
    forwards: int
    drafted: int
    accepted: int
    seconds: float
    rates: list[float]

    @property
    def tau(self) -> float:
        """Acceptance length: tokens emitted per target forward."""
        return self.tokens / self.forwards

    @property
    def nodes_per_step(self) -> float:
        return self.drafted / self.forwards

    @property
    def acceptance(self) -> float:
        """Accepted share of the drafted nodes; 0 where nothing was drafted."""
        return self.accepted / self.drafted if self.drafted else 0.0

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds

    def ratio_to(self, other: Figures) -> float:
        """Median over rounds of this rate over the other's in the same round."""
        return median(mine / theirs for mine, theirs in zip(self.rates, other.rates, strict=True))


def pool(label: str, budget: int | None, replies: Sequence[Reply]) -> Figures:
    """The figures of one contestant; `replies` has one reply per round."""
    return Figures(
        label=label,
        budget=budget,
        tokens=sum(len(reply.tokens) for reply in replies),
        forwards=sum(reply.forwards for reply in replies),
        drafted=sum(reply.drafted for reply in replies),
        accepted=sum(reply.accepted for reply in replies),
        seconds=sum(reply.seconds for reply in replies),
        rates=[reply.tokens_per_second for reply in replies],
    )


def same_tokens(replies: Sequence[Reply], expected: Sequence[Reply]) -> bool:
    """Whether every reply has the expected one's tokens."""
    pairs = zip(replies, expected, strict=True)
    return all(np.array_equal(reply.tokens, other.tokens) for reply, other in pairs)
