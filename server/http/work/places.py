"""Places for work, of which few are done at a time.

Owns who is next: keys share places by their weights, and a free one goes to the key that has used them least. Knows
nothing of the work. Everything happens on the event loop. Invariant: a place that is taken is given back once.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field


@dataclass(slots=True)
class Share:
    """What one key has of the places. used: seconds that it has had them, divided by its weight; waiting: a future for
    each of its works that has none yet, in the order in which they came."""

    weight: float = 1.0
    used: float = 0.0
    waiting: dict[asyncio.Future[None], None] = field(default_factory=dict)


class Places:
    def __init__(self, number: int) -> None:
        self._num_free = number
        self._shares: dict[str, Share] = {}  # by tenant, so at most one for each key
        self._least_used = 0.0  # by the key that had the last place: a key that was away has no more time owed to it

    async def take(self, tenant: str, weight: float) -> Share:
        """Wait for a place, and take it. Where one is free, nothing else runs meanwhile."""
        share = self._shares.setdefault(tenant, Share())
        share.weight = weight
        if not share.waiting:
            share.used = max(share.used, self._least_used)
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        share.waiting[turn] = None
        self._begin()
        try:
            await turn
        except asyncio.CancelledError:
            share.waiting.pop(turn, None)
            if not turn.cancelled():  # it has just got a place
                self.give_back(share, 0.0)
            raise
        return share

    def give_back(self, share: Share, seconds: float) -> None:
        """The place of a work of this share is free again, after so many seconds."""
        share.used += seconds / share.weight
        self._num_free += 1
        self._begin()

    def _begin(self) -> None:
        """Give free places to those who wait for one."""
        while self._num_free and (sharing := [each for each in self._shares.values() if each.waiting]):
            share = min(sharing, key=lambda each: each.used)
            turn = next(iter(share.waiting))
            del share.waiting[turn]
            if not turn.cancelled():
                self._least_used = share.used
                self._num_free -= 1
                turn.set_result(None)
