"""Short of room: replies are the same tokens, whoever gives up its blocks and however often."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from decoding.cache.block_pool import BLOCK_LEN
from decoding.config import EngineConfig
from decoding.core.events import Finished, PromptLogprobs
from decoding.core.request import Request
from decoding.core.sampling_params import SamplingParams
from decoding.core.speculation_params import SpeculationParams
from decoding.core.stats import RequestStats
from decoding.engine.engine import Engine
from decoding.engine.start import start_engine
from decoding.model.target_model import TargetModel
from tests.models import VOCAB_SIZE
from tests.pairs import CONFIG, GIVEN, draft_of, target_of

METHODS = ("auto", "spine", "stand", "dynamic", "none")
MOST_STEPS = 5000


@pytest.fixture(scope="module")
def roomy() -> Engine:
    return new_engine(8192)


@cache
def models() -> tuple[TargetModel, TargetModel]:
    """What all engines here run."""
    return target_of("llama"), draft_of("llama")


def new_engine(num_slots: int, **options: object) -> Engine:
    config = replace(CONFIG, kv_slots=num_slots, max_model_len=None, **options)  # type: ignore[arg-type]
    target, draft = models()
    return start_engine(target, config, draft_model=draft, kept=GIVEN)


def requests_of(count: int, seed: int) -> list[Request]:
    """Prompts and replies of many lengths, greedy and sampled, by every method; some begin alike."""
    generator = np.random.default_rng(seed)
    common = generator.integers(3, VOCAB_SIZE, 20)
    requests = []
    for place in range(count):
        own = generator.integers(3, VOCAB_SIZE, int(generator.integers(1, 30)))
        prompt = np.concatenate((common, own) if place % 2 else (own,)).astype(np.int32)
        sampling = SamplingParams(
            max_tokens=int(generator.integers(1, 120)),
            temperature=0.8 * (place % 3 > 0),
            top_p=0.95,
            seed=place,
            ignore_eos=True,
            prompt_logprobs=0 if place % 5 == 0 else None,
            frequency_penalty=0.5 * (place % 7 == 0),
        )
        speculation = SpeculationParams(method=METHODS[place % len(METHODS)])
        requests.append(Request(id=f"{place}", prompt=prompt, sampling=sampling, speculation=speculation))
    return requests


def again(request: Request) -> Request:
    return Request(
        id=request.id, prompt=request.prompt, sampling=request.sampling, speculation=SpeculationParams(method="none")
    )


def finish(engine: Engine, *, with_guest: bool = False) -> tuple[dict[str, RequestStats], int, dict[str, list[object]]]:
    """What each request cost, the number of steps, and what was told of prompts.

    with_guest: in two of three steps somebody else has taken every block that was to be had.
    """
    ended: dict[str, RequestStats] = {}
    scored: dict[str, list[object]] = {}
    for step in range(MOST_STEPS):
        if not engine.has_work:
            return ended, step, scored
        guest = engine.pool.open()
        if with_guest and step % 3:
            assert engine.pool.resize(guest, engine.pool.num_available * BLOCK_LEN)
        result = engine.step()
        engine.pool.check_integrity()
        engine.pool.release(guest)
        ended.update({finished.request_id: finished.stats for finished in result.of(Finished)})
        scored.update({told.request_id: list(told.logprobs) for told in result.of(PromptLogprobs)})
    raise AssertionError("the engine does not come to an end")


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("prefix_cache", [True, False])
def test_replies_are_those_of_an_engine_with_room_however_often_room_is_given_up(
    roomy: Engine, seed: int, *, prefix_cache: bool
) -> None:
    engine = new_engine(40 * BLOCK_LEN, prefix_cache=prefix_cache, max_batch_rows=64, max_running=16)
    requests = requests_of(30, seed)
    for request in requests:
        engine.add(request)
    ended, num_steps, scored = finish(engine, with_guest=True)
    num_preemptions = sum(stats.preemptions for stats in ended.values())
    assert num_preemptions > num_steps / 12, "room was hardly ever short"
    assert engine.pool.num_held == 0
    alone = [again(request) for request in requests]
    for request in alone:
        roomy.add(request)
    _, _, expected = finish(roomy)
    assert [request.output.tolist() for request in requests] == [request.output.tolist() for request in alone]
    assert scored == expected
    assert len(scored) == 6


def test_one_request_that_fills_the_whole_cache_ends(roomy: Engine) -> None:
    engine = new_engine(8 * BLOCK_LEN)
    assert engine.room.max_model_len == 8 * BLOCK_LEN
    prompt = np.random.default_rng(0).integers(3, VOCAB_SIZE, 50).astype(np.int32)
    sampling = SamplingParams(max_tokens=78, temperature=0.0, ignore_eos=True)
    request = Request(id="whole", prompt=prompt, sampling=sampling, speculation=SpeculationParams(max_nodes=32))
    engine.add(request)
    finish(engine)
    expected = again(request)
    roomy.add(expected)
    finish(roomy)
    assert request.output.tolist() == expected.output.tolist()
    assert request.num_tokens == engine.room.max_model_len


def test_the_youngest_gives_up_its_room_and_the_oldest_never() -> None:
    engine = new_engine(12 * BLOCK_LEN, max_running=3)
    sampling = SamplingParams(max_tokens=100, temperature=0.0, ignore_eos=True)
    for place in range(3):
        prompt = np.random.default_rng(place).integers(3, VOCAB_SIZE, 40).astype(np.int32)
        engine.add(Request(id=f"{place}", prompt=prompt, sampling=sampling, speculation=SpeculationParams()))
    ended, _, _ = finish(engine)
    assert list(ended) == ["0", "1", "2"]
    assert ended["0"].preemptions == 0
    assert ended["2"].preemptions > 0


def test_a_request_given_up_can_be_aborted() -> None:
    engine = new_engine(10 * BLOCK_LEN, max_running=2)
    sampling = SamplingParams(max_tokens=60, temperature=0.0, ignore_eos=True)
    for name in ("old", "young"):
        prompt = np.random.default_rng(len(name)).integers(3, VOCAB_SIZE, 50).astype(np.int32)
        engine.add(Request(id=name, prompt=prompt, sampling=sampling, speculation=SpeculationParams()))
    num_preempted = 0
    while num_preempted == 0:
        assert engine.has_work
        stats = engine.step().stats
        assert stats is not None
        num_preempted = stats.preemptions
    finished = engine.abort("young")
    assert finished is not None
    assert finished.stats.preemptions == 1
    ended, _, _ = finish(engine)
    assert list(ended) == ["old"]
    assert engine.pool.num_held == 0


def test_the_configuration_says_what_fits() -> None:
    engine = new_engine(20 * BLOCK_LEN + 7)
    assert engine.room.num_slots == engine.room.max_model_len == 20 * BLOCK_LEN
    assert engine.room.note is not None
    assert str(20 * BLOCK_LEN) in engine.room.note
    assert isinstance(engine.config, EngineConfig)
