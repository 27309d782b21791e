"""What one key asks of an engine never holds up another's, and who makes way gets the same tokens."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from decoding.cache.block_pool import BLOCK_LEN
from decoding.core.events import Finished, Tokens
from decoding.core.request import Request
from decoding.core.sampling_params import SamplingParams
from decoding.core.speculation_params import SpeculationParams
from decoding.engine.engine import Engine
from tests.decoding.engine.test_preemption import again, finish, new_engine, requests_of
from tests.models import VOCAB_SIZE

PLACES = 8


def request_of(name: str, key: str, call: str, prompt_len: int, max_tokens: int, weight: float = 1.0) -> Request:
    prompt = np.random.default_rng(list(name.encode())).integers(3, VOCAB_SIZE, prompt_len).astype(np.int32)
    return Request(
        id=name,
        prompt=prompt,
        sampling=SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True),
        speculation=SpeculationParams(method="none"),
        tenant=key,
        call_id=call,
        weight=weight,
    )


def flood(engine: Engine, key: str, number: int, prompt_len: int = 20, max_tokens: int = 60, weight: float = 1) -> None:
    """One call of so many choices."""
    for choice in range(number):
        engine.add(request_of(f"{key} {choice}", key, f"{key} flood", prompt_len, max_tokens, weight))


def steps_until_ended(engine: Engine, request: Request) -> int:
    engine.add(request)
    for step in range(1, 200):
        if request.id in {finished.request_id for finished in engine.step().of(Finished)}:
            return step
    raise AssertionError("it does not end")


@pytest.fixture(scope="module")
def engine() -> Engine:
    return new_engine(8192, max_running=PLACES, max_batch_rows=64)


def drain(engine: Engine) -> None:
    for request_id in engine.request_ids():
        engine.abort(request_id)
    assert engine.pool.num_held == 0


@pytest.mark.parametrize(("key", "prompt_len", "max_tokens"), [("b", 20, 60), ("a", 20, 60), ("b", 300, 2)])
def test_a_one_token_request_is_through_in_a_step_whatever_a_flood_asks_for(
    engine: Engine, key: str, prompt_len: int, max_tokens: int
) -> None:
    """Of another key or of its own, which decodes or reads prompts."""
    flood(engine, "a", 64, prompt_len, max_tokens)
    for _ in range(5):
        engine.step()
    for number in range(5):
        assert steps_until_ended(engine, request_of(f"guest {number}", key, f"guest {number}", 9, 1)) == 1
    drain(engine)


def test_keys_that_ask_for_much_are_given_tokens_by_their_weights(engine: Engine) -> None:
    flood(engine, "a", 60)
    flood(engine, "b", 12)
    flood(engine, "c", 12, weight=2)
    given: Counter[str] = Counter()
    for _ in range(30):
        for emitted in engine.step().of(Tokens):
            given[emitted.request_id[0]] += len(emitted.token_ids)
    drain(engine)
    assert given["a"] == pytest.approx(given["b"], rel=0.3)
    assert given["c"] == pytest.approx(2 * given["a"], rel=0.3)


@pytest.mark.parametrize("seed", range(2))
def test_replies_are_the_same_whoever_makes_way_for_whom(seed: int) -> None:
    engine = new_engine(24 * BLOCK_LEN, max_batch_rows=64, max_running=4)
    requests = requests_of(24, seed)
    rng = np.random.default_rng(seed)
    for place, request in enumerate(requests):
        request.tenant, request.call_id = "aaab"[place % 4], f"{place // 6}"
        request.weight, request.priority = (2.0 if request.tenant == "b" else 1.0), int(rng.integers(-1, 2))
    waiting = list(requests)
    num_preemptions = 0
    while waiting or engine.has_work:
        for request in waiting[: int(rng.integers(0, 3))]:
            engine.add(request)
            waiting.remove(request)
        if engine.has_work:
            result = engine.step()
            num_preemptions += result.stats.preemptions if result.stats else 0
            engine.pool.check_integrity()
    assert num_preemptions > 2, "nobody made way"
    assert engine.pool.num_held == 0
    roomy = new_engine(8192)
    alone = [again(request) for request in requests]
    for request in alone:
        roomy.add(request)
    finish(roomy)
    assert [request.output.tolist() for request in requests] == [request.output.tolist() for request in alone]
