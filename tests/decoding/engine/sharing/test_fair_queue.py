"""Who runs and who waits, played out on places alone: random arrivals, ends and weights, checked after every move."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from itertools import count

import pytest

from decoding.engine.sharing.fair_queue import FairQueue, Turn

PLACES = 12


@dataclass(eq=False)
class Item:
    turn: Turn


@dataclass
class Places:
    """A queue in front of so many places."""

    queue: FairQueue[Item] = field(default_factory=FairQueue)
    clock: count[int] = field(default_factory=count)

    def add(self, key: str, call: str, number: int = 1, weight: float = 1.0, priority: int = 0) -> list[Item]:
        items = [Item(Turn(key, call, next(self.clock), weight, priority)) for _ in range(number)]
        for item in items:
            self.queue.add(item)
        return items

    def fill(self) -> int:
        """Let in whoever may, and say how many places were taken away for that."""
        num_taken = 0
        while (item := self.queue.next()) is not None:
            if len(self.queue.running) == PLACES:
                victim = self.queue.victim(item, self.queue.running, lambda _: 1, 1)
                if victim is None:
                    break
                self.queue.stop(victim)
                num_taken += 1
            self.queue.start(item)
        return num_taken

    def running(self, part: str = "key") -> Counter[str]:
        return Counter(getattr(item.turn, part) for item in self.queue.running)


def test_what_a_key_asks_for_does_not_change_its_share() -> None:
    for flood in (12, 64, 1000):
        places = Places()
        places.add("a", "flood", flood)
        places.fill()
        for call in range(3):
            places.add("a", f"more {call}", flood)
        places.add("b", "many", 20)
        places.fill()
        assert places.running() == {"a": 6, "b": 6}


def test_a_call_of_one_request_begins_at_once_beside_one_of_many() -> None:
    places = Places()
    places.add("", "many", 512)
    places.fill()
    (single,) = places.add("", "single")
    assert places.fill() == 1
    assert single in places.queue.running
    assert places.running("call") == {"many": PLACES - 1, "single": 1}


def test_calls_of_one_request_each_wait_in_order_of_arrival() -> None:
    places = Places()
    items = [places.add("", f"{number}")[0] for number in range(PLACES + 5)]
    assert places.fill() == 0
    assert list(places.queue.running) == items[:PLACES]
    places.queue.remove(items[3])
    assert places.queue.next() is items[PLACES]


def test_a_weight_is_a_share() -> None:
    places = Places()
    places.add("light", "one", 50)
    places.add("heavy", "two", 50, weight=3.0)
    places.fill()
    assert places.running() == {"light": 3, "heavy": 9}


def test_priority_goes_before_every_share_and_takes_places() -> None:
    places = Places()
    places.add("a", "usual", 30)
    places.fill()
    places.add("a", "urgent", 5, priority=-1)
    later = places.add("b", "later", 1, priority=1)
    places.fill()
    assert places.running("call") == {"usual": 7, "urgent": 5}
    assert later[0] not in places.queue.running


def test_who_makes_way_is_the_youngest_and_is_the_next_of_its_call_again() -> None:
    places = Places()
    flood = places.add("a", "flood", 30)
    places.fill()
    (guest,) = places.add("b", "guest")
    places.fill()
    assert [item for item in flood if item in places.queue.running] == flood[: PLACES - 1]
    places.queue.remove(guest)
    assert places.queue.next() is flood[PLACES - 1]


@pytest.mark.parametrize("seed", range(20))
def test_whatever_comes_and_goes_places_are_full_shared_fairly_and_never_handed_to_and_fro(seed: int) -> None:
    rng = random.Random(seed)
    places, there = Places(), []
    weights = {key: rng.choice((1.0, 1.0, 2.0)) for key in "abcd"}
    for move in range(300):
        if rng.random() < 0.4 or not there:
            key = rng.choice("aaabcd")
            number = rng.choice((1, 1, 3, 30)) if key == "a" else rng.choice((1, 2))
            there += places.add(key, f"{move}", number, weights[key])
        else:
            gone = there.pop(rng.randrange(len(there)))
            places.queue.remove(gone)
        num_taken = places.fill()
        assert places.fill() == 0, "a place was handed to and fro"
        assert num_taken <= PLACES
        assert len(places.queue.running) == min(PLACES, len(there))
        assert len(places.queue.running) + places.queue.num_waiting == len(there)
        running, waits = places.running(), {item.turn.key for item in there} - places.running().keys()
        waiting = {item.turn.key for item in there if item not in places.queue.running}
        for key in waiting | waits:
            for other, number in running.items():
                assert (number - 1) / weights[other] < (running[key] + 1) / weights[key], (key, running)
