"""What one request's latest steps brought: the pace that prices follow.

Knows nothing of prices. Invariant: a running mean of tokens, a median of seconds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

SMOOTHING = 0.1
TRUST = 3  # steps that what was before counts for
MEDIAN_OF = 9  # steps: one slow moment of the machine moves no price


class Brought(NamedTuple):
    """By a step of one request: tokens that it emits and runs."""

    emitted: float = 2.0  # a hopeful start: the first trees are drafted at a fair price
    tokens: float = 8.0

    def towards(self, other: Brought, pace: float) -> Brought:
        emitted, tokens = self
        return Brought(emitted + pace * (other.emitted - emitted), tokens + pace * (other.tokens - tokens))


class Lately(NamedTuple):
    """What a step of one request brings, and seconds that the draft model takes for it; alone: what is expected of the
    stores alone."""

    own: Brought = Brought()
    alone: Brought = Brought()
    draft_seconds: float = 0.0


FIRST, PLAIN = Lately(), Brought(1.0, 1.0)


def numbers_of(lately: Lately) -> tuple[float, ...]:
    """In the order in which a session keeps them."""
    return *lately.own, *lately.alone, lately.draft_seconds


def lately_of(numbers: Sequence[float]) -> Lately:
    """What `numbers_of` wrote."""
    emitted, tokens, alone_emitted, alone_tokens, draft_seconds = numbers
    return Lately(Brought(emitted, tokens), Brought(alone_emitted, alone_tokens), draft_seconds)


class Acceptance:
    """What one request's latest steps brought: running means, and the median of the seconds that the draft model took.
    before: in the session's replies before this one."""

    def __init__(self, before: Lately = FIRST) -> None:
        self.own, self.alone, seconds = before
        self._num_steps = TRUST
        self._seconds = deque([seconds], MEDIAN_OF)

    def update(self, own: Brought, alone: Brought | None = None, draft_seconds: float | None = 0.0) -> None:
        """A step went by. alone: what the stores alone were expected to bring, if the draft model was asked;
        draft_seconds: None where they do not tell what drafting costs."""
        self._num_steps += 1
        pace = max(SMOOTHING, 1 / self._num_steps)
        self.own, self.alone = self.own.towards(own, pace), self.alone.towards(alone or own, pace)
        if draft_seconds is not None:
            self._seconds.append(draft_seconds)

    @property
    def draft_seconds(self) -> float:
        return sorted(self._seconds)[len(self._seconds) // 2]

    @property
    def lately(self) -> Lately:
        return Lately(self.own, self.alone, self.draft_seconds)
