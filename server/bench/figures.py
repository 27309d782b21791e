"""Computes figures from calls. Pure; figures are pooled over the rounds of one server with one number of clients.

Invariant: failed calls are counted, and are in no other figure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import mean, median

import numpy as np

from server.bench.call import Call
from server.bench.closed_loop import Run


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of one server with one number of clients. runs: one for each round; all times are in seconds."""

    label: str
    clients: int
    runs: Sequence[Run]

    @property
    def calls(self) -> list[Call]:
        """The calls that did not fail."""
        return [call for run in self.runs for call in run.calls if call.error is None]

    @property
    def errors(self) -> list[str]:
        return [call.error for run in self.runs for call in run.calls if call.error is not None]

    @property
    def seconds(self) -> float:
        return sum(run.seconds for run in self.runs)

    @property
    def requests_per_second(self) -> float:
        return len(self.calls) / self.seconds

    @property
    def tokens_per_second(self) -> float:
        """Tokens of replies, from the first request sent to the last reply's end."""
        return sum(call.completion_tokens for call in self.calls) / self.seconds

    @property
    def times_to_first_token(self) -> list[float]:
        return [seconds for call in self.calls if (seconds := call.time_to_first_token) is not None]

    @property
    def times_per_output_token(self) -> list[float]:
        return [seconds for call in self.calls if (seconds := call.time_per_output_token) is not None]

    @property
    def gaps(self) -> list[float]:
        """Inter-token latencies of all calls."""
        return [gap for call in self.calls for gap in call.gaps]

    @property
    def cached_share(self) -> float | None:
        return cached_share(self.calls)

    def ratio_to(self, other: Figures) -> float:
        """This server's tokens per second divided by the other's in the same round; the median over rounds."""
        return median(_rate(mine) / _rate(theirs) for mine, theirs in zip(self.runs, other.runs, strict=True))

    def num_same_replies(self, other: Figures) -> int:
        """How many calls were answered with the same text by both."""
        theirs = {_place(place, call): call.content for place, run in enumerate(other.runs) for call in run.calls}
        mine = [(_place(place, call), call) for place, run in enumerate(self.runs) for call in run.calls]
        return sum(call.error is None and theirs.get(key) == call.content for key, call in mine)


@dataclass(frozen=True, slots=True)
class TurnFigures:
    """The figures of all calls of one turn. prompt_tokens, cached_tokens: means; the latter is None where unknown."""

    turn: int
    prompt_tokens: float
    cached_tokens: float | None
    times_to_first_token: Sequence[float]


def by_turn(calls: Sequence[Call]) -> list[TurnFigures]:
    """Figures of each turn of conversations, in order."""
    found = []
    for turn in sorted({call.turn for call in calls}):
        here = [call for call in calls if call.turn == turn]
        cached = [call.cached_tokens for call in here if call.cached_tokens is not None]
        first = [seconds for call in here if (seconds := call.time_to_first_token) is not None]
        prompt_tokens = mean(call.prompt_tokens for call in here)
        found.append(TurnFigures(turn, prompt_tokens, mean(cached) if cached else None, first))
    return found


def cached_share(calls: Iterable[Call]) -> float | None:
    """Cached prompt tokens divided by all, over the calls where the server reports them; None where it never does."""
    told = [(call.cached_tokens, call.prompt_tokens) for call in calls if call.cached_tokens is not None]
    return sum(cached for cached, _ in told) / max(1, sum(prompt for _, prompt in told)) if told else None


def quantile(values: Sequence[float], share: float) -> float | None:
    """The quantile, interpolated between the two nearest values; None for no values."""
    return float(np.quantile(values, share)) if values else None


def _rate(run: Run) -> float:
    return max(1, sum(call.completion_tokens for call in run.calls if call.error is None)) / run.seconds


def _place(number_of_round: int, call: Call) -> tuple[int, int, int]:
    return number_of_round, call.number, call.turn
