"""Trials: a draft model or head of unknown worth is asked although it seems too dear, until its worth is known.

What its tokens are worth is learned by asking it alone. While fewer than `ENOUGH` steps have asked it at present
prices, a step may ask it as if it were as good as such models get, for `TRIAL_SHARE` of the reply's time at most; after
that the learned hit rate decides. Greedy and sampled requests are tried apart, and so are prices that differ.
A question changes nothing; `note_step` and `note_asked` count.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from decoding.costs.credit import SHORT_REPLY, TRIAL_SHARE

ENOUGH = 16  # steps: as many as a hit rate's prior counts for
HOPE = 0.95  # the hit rate of a good draft model
ALIKE = 1.25  # prices that differ by no more are the same

NumAsked = tuple[bool, int, int]  # by requests that are sampled, at a level of prices, in so many steps


class Trials:
    """Of one server. num_asked: as of an earlier start."""

    def __init__(self, num_asked: Sequence[NumAsked] = ()) -> None:
        self._num_asked = Counter({(is_sampled, level): count for is_sampled, level, count in num_asked})
        self._readable = TRIAL_SHARE * SHORT_REPLY

    @property
    def readable(self) -> float:
        """What a draft model may read for a trial, in tokens of plain decoding."""
        return self._readable

    @property
    def num_asked(self) -> list[NumAsked]:
        """In a form that can be kept."""
        return [(*key, count) for key, count in self._num_asked.items()]

    def is_open(self, is_sampled: bool, price: float) -> bool:
        """Whether a model is to be tried that costs so much for each token that it names, in tokens."""
        return self._num_asked[is_sampled, _level(price)] < ENOUGH

    def note_step(self, num_emitted: int, read: float = 0.0) -> None:
        """The server emitted so many tokens. read: what was read for trials, in tokens of plain decoding."""
        self._readable += TRIAL_SHARE * num_emitted - read

    def note_asked(self, is_sampled: bool, price: float) -> None:
        """A step asked the model at such a price."""
        key = is_sampled, _level(price)
        self._num_asked[key] = min(self._num_asked[key] + 1, ENOUGH)


def _level(price: float) -> int:
    return round(math.log(price) / math.log(ALIKE))
