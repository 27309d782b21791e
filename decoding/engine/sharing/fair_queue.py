"""Who runs and who waits, fairly between keys, and between the calls of one key. No tensors, no blocks, no seconds.

Every key is due the same share (by its weight), and in it every call: what a call asks for (its number of choices) and
how much waits changes no share. What is left over goes to whoever can use it (max-min fairness).
Invariant: nobody gives up a place unless its key, or call, still holds as much as the one that takes it: places are
never handed to and fro.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Generic, NamedTuple, Protocol, TypeVar


class Turn(NamedTuple):
    """Whose turn something is. weight: of its key against other keys; priority: lower goes first, whatever its share;
    arrived: in any unit, earlier is smaller."""

    key: str
    call: str
    arrived: float
    weight: float = 1.0
    priority: int = 0


class Queued(Protocol):
    @property
    def turn(self) -> Turn: ...


T = TypeVar("T", bound=Queued)
Call = tuple[int, str, str]  # priority, key, call


class FairQueue(Generic[T]):
    """`add`, then `start` and `stop` at will, `remove` at last. running: those that run, in the order in which they
    started; num_waiting: how many wait."""

    def __init__(self) -> None:
        self._waiting: defaultdict[Call, list[T]] = defaultdict(list)  # in order of arrival
        self._running: dict[T, None] = {}
        self.running: Collection[T] = self._running.keys()
        self._num_of_key: Counter[str] = Counter()  # that run
        self._num_of_call: Counter[Call] = Counter()
        self.num_waiting = 0
        self._next: T | None = None  # as long as nothing has changed

    @property
    def first(self) -> T | None:
        """Who came first of those that run."""
        return min(self._running, key=lambda each: (each.turn.priority, each.turn.arrived), default=None)

    def add(self, item: T) -> None:
        """It waits from now on; one that ran before has its old place among those of its call."""
        self.num_waiting += 1
        insort(self._waiting[_call_of(item)], item, key=lambda each: each.turn.arrived)
        self._next = None

    def remove(self, item: T) -> None:
        """Wherever it is."""
        call = _call_of(item)
        self._next = None
        if item in self._running:
            del self._running[item]
            self._count(item, -1)
            return
        self.num_waiting -= 1
        self._waiting[call].remove(item)
        if not self._waiting[call]:
            del self._waiting[call]

    def start(self, item: T) -> None:
        """One that waits runs."""
        self.remove(item)
        self._running[item] = None
        self._count(item, 1)

    def stop(self, item: T) -> None:
        """One that runs waits again."""
        self.remove(item)
        self.add(item)

    def next(self) -> T | None:
        """Whose turn it is of those that wait: the first of the call that runs least, of the key that runs least."""
        if self._next is None and self._waiting:
            self._next = min((call[0] for call in self._waiting.values()), key=self._rank)
        return self._next

    def victim(self, taker: T, among: Iterable[T], held: Callable[[T], float], wanted: float) -> T | None:
        """Who of those that run gives up its place so that `taker` may hold `wanted` more; None where nobody has to.

        The youngest of the call that holds most of the key that holds most, or one of lower priority; never who came
        first of all, so that whatever runs ends.
        """
        holdings = {item: held(item) for item in self._running}
        of_key, of_call = _totals(holdings)
        first = self.first

        def has_to(item: T) -> bool:
            mine, theirs = taker.turn, item.turn
            if item is taker or item is first or theirs.priority < mine.priority:
                return False
            if theirs.priority > mine.priority:
                return True
            if theirs.key == mine.key:
                return of_call[_call_of(item)] - holdings[item] >= of_call[_call_of(taker)] + wanted
            left, taken = of_key[theirs.key] - holdings[item], of_key[mine.key] + wanted
            return left * mine.weight >= taken * theirs.weight

        def most(item: T) -> tuple[float, ...]:
            turn = item.turn
            return turn.priority, of_key[turn.key] / turn.weight, of_call[_call_of(item)], turn.arrived

        return max(filter(has_to, among), key=most, default=None)

    def _rank(self, item: T) -> tuple[float, ...]:
        turn = item.turn
        return turn.priority, self._num_of_key[turn.key] / turn.weight, self._num_of_call[_call_of(item)], turn.arrived

    def _count(self, item: T, change: int) -> None:
        for counter, name in ((self._num_of_key, item.turn.key), (self._num_of_call, _call_of(item))):
            counter[name] += change  # type: ignore[index]
            if not counter[name]:  # type: ignore[index]
                del counter[name]


def _call_of(item: Queued) -> Call:
    turn = item.turn
    return turn.priority, turn.key, turn.call


def _totals(holdings: Mapping[T, float]) -> tuple[Counter[str], Counter[Call]]:
    """What each key and each call holds."""
    of_key: Counter[str] = Counter()
    of_call: Counter[Call] = Counter()
    for item, number in holdings.items():
        of_key[item.turn.key] += number  # type: ignore[assignment]
        of_call[_call_of(item)] += number  # type: ignore[assignment]
    return of_key, of_call
