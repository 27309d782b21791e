"""What each drafting method has lately earned: tokens per second of the steps' time that it took.

Pure counting; owned by a session, one ledger for greedy and one for sampled requests.
"""

from __future__ import annotations

from dataclasses import dataclass, field

FORGETTING = 1 / 64  # of what was earned, at every step of the same method
STALE_STEPS = 512  # of other methods, after which what one has earned says nothing any more
MOST_PROMISED = 20.0  # tokens a step


@dataclass(slots=True)
class Earnings:
    """Of one method: steps, tokens and seconds, the last few dozen steps counting most. last_step: of the ledger."""

    steps: float = 0.0
    tokens: float = 0.0
    seconds: float = 0.0
    last_step: int = 0

    @property
    def tokens_per_step(self) -> float:
        return self.tokens / self.steps if self.steps else 0.0

    @property
    def rate(self) -> float:
        """Tokens a second; 0 while nothing was earned."""
        return self.tokens / self.seconds if self.seconds else 0.0


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
    """The earnings of every method that was used. num_steps: of all methods together; promise: the n-gram store's."""

    num_steps: int = 0
    methods: dict[str, Earnings] = field(default_factory=dict)
    promise: Promise = field(default_factory=Promise)

    def of(self, method: str) -> Earnings:
        """What the method has lately earned: nothing if it was not used for `STALE_STEPS`."""
        earned = self.methods.get(method)
        return _NOTHING if earned is None or self.num_steps - earned.last_step > STALE_STEPS else earned

    def steps_since(self, method: str) -> int:
        """Steps of all methods since this one was last used."""
        return self.num_steps - self.of(method).last_step

    def forget(self, method: str) -> None:
        """What the method earned says nothing any more."""
        self.methods.pop(method, None)

    def note(self, method: str, num_tokens: int, seconds: float) -> None:
        """A step drafted by `method` gave a request so many tokens and took so much of the step's time."""
        earned = self.of(method)
        if earned is _NOTHING:
            earned = self.methods[method] = Earnings()
        self.num_steps += 1
        keep = 1 - FORGETTING
        earned.steps = keep * earned.steps + 1
        earned.tokens = keep * earned.tokens + num_tokens
        earned.seconds = keep * earned.seconds + seconds
        earned.last_step = self.num_steps


_NOTHING = Earnings()
