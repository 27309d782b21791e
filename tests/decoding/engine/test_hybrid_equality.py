"""Layers that carry a state: drafted or plain, alone or among others, found, preempted or resumed, the same tokens."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from decoding.cache.block_pool import BLOCK_LEN
from decoding.core.events import Finished
from decoding.core.request import Request
from decoding.core.sampling_params import SamplingParams
from decoding.core.speculation_params import SpeculationParams
from decoding.core.tree import IntArray
from decoding.engine.engine import Engine
from decoding.engine.start import start_engine
from tests.pairs import CONFIG, finish, prompt_of, reply, request_of, target_of

METHODS = ("spine", "stand", "auto", "lookup")
LAWS = {
    "greedy": SamplingParams(max_tokens=40, temperature=0.0, ignore_eos=True),
    "sampled": SamplingParams(max_tokens=40, temperature=0.7, seed=5, ignore_eos=True),
}
MOST_STEPS = 5000


@pytest.fixture(scope="module", params=["qwen3_next", pytest.param("lfm2", marks=pytest.mark.slow), "bamba"])
def engine(request: pytest.FixtureRequest) -> Engine:
    target = target_of(request.param)
    if not target.is_exact:
        pytest.skip("this processor does not give row-invariant arithmetic")
    return start_engine(target, CONFIG)


def twice(seed: int) -> IntArray:
    """A prompt that says everything twice, so that much is drafted."""
    return np.tile(prompt_of(20, seed), 2)


@pytest.mark.parametrize("law", LAWS)
def test_a_drafted_reply_is_the_plain_one(engine: Engine, law: str) -> None:
    num_accepted = num_drafted = 0
    for seed in range(2):
        plain = reply(engine, request_of("plain", twice(seed), LAWS[law]))
        for method in METHODS:
            drafted = request_of(method, twice(seed), LAWS[law], method)
            engine.add(drafted)
            ended, _ = finish(engine)
            assert drafted.output.tolist() == plain, method
            num_accepted += ended[method].counts.accepted
            num_drafted += ended[method].counts.drafted
    assert num_drafted > num_accepted > 0


def test_eight_at_once_in_chunks_are_answered_as_alone(engine: Engine) -> None:
    engine.start_afresh(0.0)
    prompts = [prompt_of(10 + 37 * place, place) for place in range(8)]
    laws = [LAWS["greedy" if place % 2 else "sampled"] for place in range(8)]
    alone = [reply(engine, request_of("alone", *each)) for each in zip(prompts, laws, strict=True)]
    engine.start_afresh(0.0)
    together = [
        request_of(f"{place}", prompt, law, ("none", *METHODS)[place % 5])
        for place, (prompt, law) in enumerate(zip(prompts, laws, strict=True))
    ]
    for request in together:
        engine.add(request)
    finish(engine)
    assert [request.output.tolist() for request in together] == alone


def test_a_prompt_is_found_from_its_last_whole_block_on(engine: Engine) -> None:
    engine.start_afresh(0.0)
    prompt = prompt_of(100, 7)
    plain = reply(engine, request_of("first", prompt, LAWS["sampled"]))
    assert engine.stats().state_checkpoints == 1
    again = request_of("again", prompt, LAWS["sampled"], "auto")
    engine.add(again)
    ended, _ = finish(engine)
    assert again.output.tolist() == plain
    assert ended["again"].cached_tokens == 96


def test_what_two_prompts_share_is_found_by_the_third(engine: Engine) -> None:
    engine.start_afresh(0.0)
    common, found = prompt_of(50, 8), []
    for place in range(3):
        prompt = np.concatenate((common, prompt_of(30, 20 + place)))
        request = request_of(f"{place}", prompt, LAWS["greedy"])
        engine.add(request)
        ended, _ = finish(engine)
        found.append((ended[f"{place}"].cached_tokens, request.output.tolist()))
    assert [cached for cached, _ in found] == [0, 0, 48]
    engine.start_afresh(0.0)
    last = request_of("alone", np.concatenate((common, prompt_of(30, 22))), LAWS["greedy"])
    assert reply(engine, last) == found[2][1]


def test_choices_of_one_call_share_their_prompts_state(engine: Engine) -> None:
    engine.start_afresh(0.0)
    prompt = prompt_of(80, 9)
    laws = [replace(LAWS["sampled"], seed=seed) for seed in range(3)]
    choices = [request_of(f"{place}", prompt, law, "auto") for place, law in enumerate(laws)]
    for choice in choices:
        engine.add(choice)
    ended, _ = finish(engine)
    assert sorted(stats.cached_tokens for stats in ended.values()) == [0, 64, 64]
    engine.start_afresh(0.0)
    assert [choice.output.tolist() for choice in choices] == [
        reply(engine, request_of("alone", prompt, law)) for law in laws
    ]


def test_a_reply_is_resumed_after_any_of_its_tokens(engine: Engine) -> None:
    prompt, law = twice(3), LAWS["sampled"]
    plain = reply(engine, request_of("plain", prompt, law))
    for num_there in (1, 7, 30):
        resumed = Request(
            id="resumed",
            prompt=prompt,
            sampling=law,
            speculation=SpeculationParams(method="auto"),
            resumed=np.array(plain[:num_there], np.int32),
        )
        engine.add(resumed)
        finish(engine)
        assert resumed.output.tolist() == plain


@pytest.mark.parametrize("prefix_cache", [True, False])
def test_whoever_gives_up_its_room_says_the_same(engine: Engine, *, prefix_cache: bool) -> None:
    engine.start_afresh(0.0)
    config = replace(
        CONFIG, kv_slots=14 * BLOCK_LEN, max_model_len=None, max_running=4, max_batch_rows=64, prefix_cache=prefix_cache
    )
    tight = start_engine(engine.model, config)
    prompts = [prompt_of(40, place) for place in range(6)]
    requests = [request_of(f"{place}", prompt, LAWS["sampled"], "auto") for place, prompt in enumerate(prompts)]
    for request in requests:
        tight.add(request)
    num_preempted = 0
    for step in range(MOST_STEPS):
        if not tight.has_work:
            break
        guest = tight.pool.open()
        if step % 3:  # somebody else has taken every block that was to be had
            assert tight.pool.resize(guest, tight.pool.num_available * BLOCK_LEN)
        result = tight.step()
        tight.pool.check_integrity()
        tight.pool.release(guest)
        num_preempted += sum(ended.stats.preemptions for ended in result.of(Finished))
    assert not tight.has_work
    assert num_preempted > 0
    assert [request.output.tolist() for request in requests] == [
        reply(engine, request_of("alone", prompt, LAWS["sampled"])) for prompt in prompts
    ]
    assert tight.pool.states is not None
    assert tight.pool.states.num_made <= 2 * tight.limits.max_running + tight.pool.states.max_checkpoints
