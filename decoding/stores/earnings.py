"""What each drafting method has lately earned: tokens per second of the steps' time that it took.

Pure counting; owned by a session, one ledger for greedy and one for sampled requests.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

FORGETTING = 1 / 64  # of what was earned and promised, at every step and every token of the session
MOST_PROMISED = 20.0  # tokens a step


@dataclass(slots=True)
class Earnings:
    """Of one method: steps, tokens and seconds, the session's late steps counting most."""

    steps: float = 0.0
    tokens: float = 0.0
    seconds: float = 0.0

    @property
    def tokens_per_step(self) -> float:
        return self.tokens / self.steps if self.steps else 0.0

    @property
    def rate(self) -> float:
        """Tokens a second; 0 while nothing was earned."""
        return self.tokens / self.seconds if self.seconds else 0.0

    @property
    def hope(self) -> float:
        """Tokens a second it may well earn: the rate, and a margin that shrinks as it is used and grows with time."""
        return self.rate * (1 + 1 / math.sqrt(self.steps)) if self.steps else math.inf

    def fade(self) -> None:
        """A step of the session goes by."""
        keep = 1 - FORGETTING
        self.steps, self.tokens, self.seconds = keep * self.steps, keep * self.tokens, keep * self.seconds


@dataclass(slots=True)
class Promise:
    """How well a store would have foretold the replies, though another method drafted them.

    share: of the last few dozen tokens, those it thought likeliest.
    """

    share: float = 0.0

    def note(self, num_foretold: int, num_tokens: int) -> None:
        keep = (1 - FORGETTING) ** num_tokens
        self.share = keep * self.share + (1 - keep) * num_foretold / num_tokens

    @property
    def tokens_per_step(self) -> float:
        """Tokens a chain from the store would have given a step, the bonus token included."""
        return 1 / max(1 - self.share, 1 / MOST_PROMISED)


@dataclass(slots=True)
class Ledger:
    """The earnings of every method that was used. promise: the n-gram store's."""

    methods: dict[str, Earnings] = field(default_factory=dict)
    promise: Promise = field(default_factory=Promise)

    def of(self, method: str) -> Earnings:
        """What the method has lately earned: nothing if it was not used."""
        return self.methods.get(method, _NOTHING)

    def forget(self, method: str) -> None:
        """What the method earned says nothing any more."""
        self.methods.pop(method, None)

    def note(self, method: str, num_tokens: int, seconds: float) -> None:
        """A step drafted by `method` gave a request so many tokens and took so much of the step's time."""
        for earned in self.methods.values():
            earned.fade()
        earned = self.methods.setdefault(method, Earnings())
        earned.steps += 1
        earned.tokens += num_tokens
        earned.seconds += seconds


_NOTHING = Earnings()
