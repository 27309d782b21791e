"""Who stays, who is due and who makes way, by a clock that the test owns."""

import math
import random

from server.models.residency import Residency, Room, makes_way


def test_a_model_is_due_its_keep_alive_after_its_last_use() -> None:
    model = Residency(keep_alive=300.0)
    model.begin_use()
    model.begin_use()
    model.end_use(now=10.0)
    assert model.due == math.inf  # another request runs on it
    model.end_use(now=20.0)
    assert (model.due, model.last_used) == (320.0, 20.0)
    model.begin_use()
    assert model.due == math.inf


def test_a_request_says_how_long_the_model_stays_after_it() -> None:
    model = Residency(keep_alive=300.0)
    for keep_alive, due in ((0.0, 50.0), (7.5, 57.5), (-1.0, math.inf), (None, 350.0)):
        model.begin_use()
        model.end_use(50.0, keep_alive)
        assert model.due == due
    forever = Residency(keep_alive=-1.0)
    forever.touch(now=5.0)
    assert forever.due == math.inf


def test_a_model_that_is_to_leave_does_so_after_its_last_request_whatever_that_asks_for() -> None:
    model = Residency(keep_alive=-1.0)
    model.begin_use()
    model.leave(now=1.0)
    assert model.due == math.inf
    model.end_use(2.0, keep_alive=1000.0)
    assert model.due == 2.0


def test_the_least_recently_used_model_makes_way_and_never_one_in_use() -> None:
    first, second, third = (Residency(-1.0, last_used=time) for time in (3.0, 1.0, 2.0))
    assert makes_way([first, second, third]) is second
    second.begin_use()
    assert makes_way([first, second, third]) is third
    third.begin_use()
    first.begin_use()
    assert makes_way([first, second, third]) is None
    assert makes_way([]) is None


def test_whatever_comes_and_goes_a_model_in_use_neither_makes_way_nor_is_due() -> None:
    rng, now = random.Random(58), 0.0
    models = [Residency(rng.choice((-1.0, 0.0, 10.0))) for _ in range(4)]
    for _ in range(2000):
        now += rng.random()
        model = rng.choice(models)
        if model.num_uses and rng.random() < 0.55:
            model.end_use(now, rng.choice((None, 0.0, -1.0, 3.0)))
        elif rng.random() < 0.8:
            model.begin_use()
        else:
            model.leave(now)
        chosen = makes_way(models)
        assert all(each.due == math.inf for each in models if each.num_uses)
        assert (chosen is None) == all(each.num_uses for each in models)
        if chosen is not None:
            assert not chosen.num_uses
            assert chosen.last_used == min(each.last_used for each in models if not each.num_uses)


def test_there_is_room_by_number_and_by_memory_and_always_for_the_first() -> None:
    assert Room(most=2, free_bytes=None).has(num_loaded=1, needed_bytes=10**12)
    assert not Room(most=2, free_bytes=None).has(num_loaded=2, needed_bytes=0)
    assert Room(most=None, free_bytes=100).has(num_loaded=5, needed_bytes=100)
    assert not Room(most=None, free_bytes=100).has(num_loaded=1, needed_bytes=101)
    assert Room(most=1, free_bytes=0).has(num_loaded=0, needed_bytes=10**12)
