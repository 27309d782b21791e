"""Computes the numbers of a table from timed replies. Pure; all ratios are computed here.

Invariant: a metric is a ratio of sums over replies; only ratios to another contestant are taken round by round,
because the machine's speed drifts.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

import msgspec
import numpy as np

from decoding.bench.contestant import Reply


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    """Sums over replies. forwards: target forwards that verified a root, counted once for each reply with a root in
    it. drafted, accepted: nodes."""

    tokens: int
    forwards: int
    drafted: int
    accepted: int

    @property
    def tau(self) -> float:
        """Acceptance length: tokens emitted per target forward."""
        return self.tokens / self.forwards

    @property
    def nodes_per_step(self) -> float:
        return self.drafted / self.forwards


class Figures(Counts, frozen=True, kw_only=True):
    """One contestant's replies to one workload, and each round's tokens per second, in round order."""

    label: str
    seconds: float
    rates: list[float]

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds

    def ratio_to(self, other: Figures) -> float:
        """The median over rounds of the ratio of both rates in the same round."""
        return median(mine / theirs for mine, theirs in zip(self.rates, other.rates, strict=True))


def pool(label: str, replies: Sequence[Reply]) -> Figures:
    """The figures of one contestant. replies: one per round."""
    return Figures(
        label=label,
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
