"""How long a model stays loaded: who uses it, when it was last used, and who makes way for another.

Pure: times are given, in seconds of any clock that goes forward. Invariant: a model in use never makes way.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(slots=True)
class Residency:
    """keep_alive: seconds that the model stays after its last use; negative: until another needs its room. num_uses:
    requests that wait for it or run on it. due: when it is to be unloaded, if nobody uses it until then. is_leaving:
    whether it is to be unloaded after its last use, whatever that asks for."""

    keep_alive: float
    num_uses: int = 0
    last_used: float = -math.inf
    due: float = math.inf
    is_leaving: bool = False

    def begin_use(self) -> None:
        self.num_uses += 1
        self.due = math.inf

    def end_use(self, now: float, keep_alive: float | None = None) -> None:
        """keep_alive: what the request asked for; the model's own if None."""
        assert self.num_uses > 0, self.num_uses
        self.num_uses -= 1
        self.touch(now, keep_alive)

    def touch(self, now: float, keep_alive: float | None = None) -> None:
        """Count from now on, unless somebody uses it: then its last user does."""
        self.last_used = now
        seconds = 0.0 if self.is_leaving else self.keep_alive if keep_alive is None else keep_alive
        self.due = math.inf if self.num_uses or seconds < 0 else now + seconds

    def leave(self, now: float) -> None:
        """Be due as soon as nobody uses it."""
        self.is_leaving = True
        self.touch(now)


@dataclass(frozen=True, slots=True)
class Room:
    """most: models that may be loaded at a time, None for no limit. free_bytes: of memory, None where nothing says."""

    most: int | None
    free_bytes: int | None

    def has(self, num_loaded: int, needed_bytes: int) -> bool:
        """Whether one more model, which needs so much memory, may be loaded. Alone it always may: then its worker says
        whether it fits, which knows it better."""
        if num_loaded == 0:
            return True
        if self.most is not None and num_loaded >= self.most:
            return False
        return self.free_bytes is None or needed_bytes <= self.free_bytes


def makes_way(loaded: Iterable[Residency]) -> Residency | None:
    """The least recently used of the loaded models that nobody uses; None where all are in use."""
    return min((each for each in loaded if not each.num_uses), key=lambda each: each.last_used, default=None)
