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
from decoding.bench.counts import Counts


class Figures(Counts, frozen=True, kw_only=True):
    """Sums over one contestant's replies to one workload, and each round's tokens per second, in round order.

    Every metric of every method is computed here; the glossary of docs/architecture.md says what each means.
    """

    label: str
    budget: int | None
    accepted: int
    seconds: float
    rates: list[float]
    first_token_seconds: float = 0.0
    draft_seconds: float = 0.0
    target_seconds: float = 0.0
    cpu_seconds: list[float] = msgspec.field(default_factory=list)  # in each round

    @property
    def acceptance(self) -> float:
        """The accepted share of the drafted nodes; 0 if nothing was drafted."""
        return self.accepted / self.drafted if self.drafted else 0.0

    @property
    def path_length(self) -> float:
        """Accepted nodes per target forward: the mean depth of the accepted path, before the bonus token."""
        return self.accepted / self.forwards

    @property
    def time_to_first_token(self) -> float:
        """TTFT: mean seconds from the submission of the prompt to the first token."""
        return self.first_token_seconds / len(self.rates)

    @property
    def time_per_output_token(self) -> float:
        """TPOT: seconds after the first token over the tokens after it, summed over replies."""
        return (self.seconds - self.first_token_seconds) / max(1, self.tokens - len(self.rates))

    @property
    def draft_seconds_per_step(self) -> float:
        return self.draft_seconds / self._decoding_steps

    @property
    def target_seconds_per_step(self) -> float:
        return self.target_seconds / self._decoding_steps

    @property
    def _decoding_steps(self) -> int:
        """Target forwards, without the one in each reply that ends the prompt."""
        return max(1, self.forwards - len(self.rates))

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds

    def ratio_to(self, other: Figures) -> float:
        """The median over rounds of the ratio of both rates in the same round."""
        return median(mine / theirs for mine, theirs in zip(self.rates, other.rates, strict=True))

    def cpu_ratio_to(self, other: Figures) -> float:
        """The speed-up in processor time, which other processes do not disturb: the median over rounds of the other's
        over this one's. Only for contestants that gave the same tokens."""
        return median(theirs / mine for mine, theirs in zip(self.cpu_seconds, other.cpu_seconds, strict=True))


def pool(label: str, budget: int | None, replies: Sequence[Reply]) -> Figures:
    """The figures of one contestant. replies: one per round."""
    return Figures(
        label=label,
        budget=budget,
        tokens=sum(len(reply.tokens) for reply in replies),
        forwards=sum(reply.forwards for reply in replies),
        drafted=sum(reply.drafted for reply in replies),
        accepted=sum(reply.accepted for reply in replies),
        seconds=sum(reply.seconds for reply in replies),
        rates=[reply.tokens_per_second for reply in replies],
        first_token_seconds=sum(reply.first_token_seconds for reply in replies),
        draft_seconds=sum(reply.draft_seconds for reply in replies),
        target_seconds=sum(reply.target_seconds for reply in replies),
        cpu_seconds=[reply.cpu_seconds for reply in replies],
    )


def same_tokens(replies: Sequence[Reply], expected: Sequence[Reply]) -> bool:
    """Whether every reply has the expected one's tokens."""
    pairs = zip(replies, expected, strict=True)
    return all(np.array_equal(reply.tokens, other.tokens) for reply, other in pairs)
