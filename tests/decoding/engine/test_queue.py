"""How many requests an engine takes on, and that each has an id of its own."""

from __future__ import annotations

from dataclasses import replace

import pytest

from decoding.core.request import Request
from decoding.engine.engine import Engine
from decoding.engine.start import start_engine
from decoding.errors import RequestRejected
from decoding.model.target_model import TargetModel
from tests.decoding.engine.test_engine import CONFIG, GREEDY, finish, prompt_of, request_of
from tests.models import tiny
from tests.pairs import GIVEN


def new_engine(**limits: int) -> Engine:
    config = replace(CONFIG, **limits)  # type: ignore[arg-type]
    return start_engine(TargetModel.from_model(tiny("llama"), config), config, kept=GIVEN)


def some(count: int) -> list[Request]:
    return [request_of(f"{place}", prompt_of(9 + place, place), GREEDY) for place in range(count)]


@pytest.mark.parametrize(("max_running", "max_waiting"), [(3, 0), (1, 0), (2, 2)])
def test_a_burst_is_taken_up_to_those_that_may_run_and_wait(max_running: int, max_waiting: int) -> None:
    engine = new_engine(max_running=max_running, max_waiting=max_waiting)
    requests = some(max_running + max_waiting + 1)
    for request in requests[:-1]:
        engine.add(request)
    with pytest.raises(RequestRejected) as caught:
        engine.add(requests[-1])
    assert caught.value.code == "queue_full"
    finish(engine)
    assert all(len(request.output) == GREEDY.max_tokens for request in requests[:-1])
    engine.add(requests[-1])
    finish(engine)


def test_an_id_in_flight_is_not_taken_twice_and_the_first_goes_on() -> None:
    engine = new_engine()
    first, other, again = request_of("one", prompt_of(9), GREEDY), some(1)[0], request_of("one", prompt_of(12), GREEDY)
    engine.add(first)
    engine.add(other)
    engine.step()
    with pytest.raises(RequestRejected) as caught:
        engine.add(again)
    assert caught.value.code == "duplicate_request"
    finish(engine)
    assert [len(each.output) for each in (first, other, again)] == [GREEDY.max_tokens, GREEDY.max_tokens, 0]
    engine.add(again)
    finish(engine)
    assert len(again.output) == GREEDY.max_tokens
