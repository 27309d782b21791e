"""Counts the tokens that a call has used, in OpenAI's `usage` format."""

from __future__ import annotations

from collections import defaultdict

from server.generation.choice import ChoiceDelta
from server.schemas.replies import Usage


class UsageCount:
    """Sums the tokens that the choices of a call have used so far. num_choices: generated for each prompt."""

    def __init__(self, prompt_tokens: int, num_choices: int) -> None:
        self._prompt_tokens = prompt_tokens
        self._num_choices = num_choices
        self._last: dict[int, ChoiceDelta] = {}

    def add(self, delta: ChoiceDelta) -> None:
        self._last[delta.index] = delta

    def usage(self) -> Usage:
        last = self._last.values()
        stats = [delta.stats for delta in last if delta.stats is not None]
        completion_tokens = sum(delta.num_tokens for delta in last)
        return {
            "prompt_tokens": self._prompt_tokens,
            "completion_tokens": completion_tokens,
            "total_tokens": self._prompt_tokens + completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self._cached_tokens()},
            "completion_tokens_details": {
                "accepted_prediction_tokens": sum(each.accepted_prediction_tokens for each in stats),
                "rejected_prediction_tokens": sum(each.rejected_prediction_tokens for each in stats),
                "reasoning_tokens": sum(delta.num_reasoning for delta in last),
            },
        }

    def _cached_tokens(self) -> int:
        """Cached prompt tokens. A prompt counts with the fewest that one of its choices had, once all have ended."""
        cached = defaultdict[int, list[int]](list)
        for index, delta in self._last.items():
            if delta.stats is not None:
                cached[index // self._num_choices].append(delta.stats.cached_tokens)
        return sum(min(counts) for counts in cached.values() if len(counts) == self._num_choices)
