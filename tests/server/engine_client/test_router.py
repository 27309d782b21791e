"""Which worker a call goes to."""

from collections import Counter

from decoding.core.sampling_params import SamplingParams
from decoding.core.speculation_params import SpeculationParams
from decoding.worker.calls import Submit
from server.engine_client.router import PIECE_LEN, Router


def call(prompt: list[int], session_id: str = "local", cache_salt: str = "") -> Submit:
    return Submit(
        request_id="x",
        prompt=prompt,
        sampling=SamplingParams(max_tokens=1),
        speculation=SpeculationParams(),
        session_id=session_id,
        cache_salt=cache_salt,
    )


def prompt(number: int, length: int = 3 * PIECE_LEN) -> list[int]:
    return [1000 * number + place for place in range(length)]


def test_calls_that_nothing_is_known_of_are_spread() -> None:
    router = Router(3)
    counts = Counter(router.pick(call(prompt(number, 5)), 1, dict.fromkeys(range(3), 0)) for number in range(30))
    assert set(counts.values()) == {10}
    assert router.pick(call(prompt(99)), 1, {0: 4, 1: 2, 2: 3}) == 1


def test_a_session_goes_back_to_its_worker_unless_that_is_much_busier() -> None:
    router = Router(2)
    home = router.pick(call([1], "a"), 1, {0: 1, 1: 0})
    assert home == router.home("", "a") == 1
    for loads in ({0: 0, 1: 0}, {0: 0, 1: 1}, {0: 3, 1: 4}, {0: 30, 1: 37}):
        assert router.pick(call([1], "a"), 1, loads) == 1
    assert router.pick(call([1], "a"), 1, {0: 0, 1: 5}) == 0
    assert router.home("", "a") == 0, "it stays where it is"
    assert router.pick(call([1], "a"), 64, {0: 0, 1: 0}) == 0, "a call alone is no load to flee from"


def test_a_prompt_goes_where_most_of_it_was_run() -> None:
    router, idle = Router(2), {0: 0, 1: 0}
    system = prompt(1, 2 * PIECE_LEN)
    assert router.pick(call(system + prompt(2)), 1, idle) == 0
    assert router.pick(call(system + prompt(3)), 1, {0: 9, 1: 0}) == 1
    assert router.pick(call(system + prompt(2) + prompt(4)), 1, {0: 1, 1: 0}) == 0
    assert router.pick(call(system + prompt(3) + prompt(5)), 1, {0: 0, 1: 1}) == 1
    assert router.pick(call(system + prompt(2), cache_salt="other"), 1, {0: 1, 1: 0}) == 1, "no cache is shared"
    router.forget(0)
    assert router.pick(call(system + prompt(2)), 1, {0: 0, 1: 1}) == 1, "the worker that is left knows a part"


def test_requests_that_name_no_session_have_no_home_and_a_worker_that_is_not_there_is_not_picked() -> None:
    router = Router(2)
    router.pick(call([1]), 1, {0: 0, 1: 0})
    assert router.home("", "local") is None
    router.settle("", "a", 0)
    assert router.pick(call([1], "a"), 1, {1: 40}) == 1
