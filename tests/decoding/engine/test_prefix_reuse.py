"""Prompts are run once: what is found need not be run, and neither replies nor drafting are worse for it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from decoding.cache.block_pool import BLOCK_LEN
from decoding.core.events import Finished, PromptLogprobs
from decoding.core.request import Request
from decoding.core.sampling_params import SamplingParams
from decoding.core.speculation_params import SpeculationParams
from decoding.core.stats import RequestStats, StepStats
from decoding.engine.engine import Engine
from decoding.engine.start import start_engine
from decoding.stores.acceptance_model import measured_models
from tests.models import VOCAB_SIZE
from tests.pairs import CONFIG, GIVEN, draft_of, finish, target_of

METHODS = ("auto", "spine", "stand", "dynamic", "none")
GREEDY = SamplingParams(max_tokens=24, temperature=0.0, ignore_eos=True)


@pytest.fixture(scope="module")
def engines() -> tuple[Engine, Engine]:
    """One that reuses prompts and one that does not."""
    target, draft = target_of("llama"), draft_of("llama")
    return tuple(  # type: ignore[return-value]
        start_engine(target, replace(CONFIG, prefix_cache=reuses), draft_model=draft, kept=GIVEN)
        for reuses in (True, False)
    )


def prompt_of(length: int, seed: int) -> NDArray[np.int32]:
    return np.random.default_rng(seed).integers(3, VOCAB_SIZE, length).astype(np.int32)


def request_of(name: str, prompt: NDArray[np.int32], method: str = "auto", **options: object) -> Request:
    """Budgets are asked for, so that what is drafted does not hang on what a step costs."""
    fields: dict[str, object] = {"sampling": GREEDY, "session_id": "one"} | options
    return Request(id=name, prompt=prompt, speculation=SpeculationParams(method=method, max_nodes=12), **fields)  # type: ignore[arg-type]


def run(engine: Engine, *requests: Request) -> tuple[dict[str, RequestStats], list[StepStats]]:
    for request in requests:
        engine.add(request)
    return finish(engine)


def num_prompt_rows(steps: list[StepStats]) -> int:
    return sum(step.prefill_rows for step in steps)


@pytest.mark.parametrize("method", METHODS)
def test_a_conversation_runs_what_each_turn_adds(engines: tuple[Engine, Engine], method: str) -> None:
    """Turn by turn the same tokens as without reuse, the same drafts, and as many rows in the last as in the first."""
    histories, rows_by_turn = [], []
    for engine in engines:
        history, rows = np.empty(0, np.int32), []
        for turn in range(6):
            history = np.concatenate((history, prompt_of(40, seed=100 * METHODS.index(method) + turn)))
            sampling = replace(GREEDY, temperature=0.7 * (turn % 2), seed=turn)
            request = request_of(f"{turn}", history, method, session_id=method, sampling=sampling)
            ended, steps = run(engine, request)
            rows.append(num_prompt_rows(steps))
            history = request.tokens.copy()
        histories.append(history.tolist())
        rows_by_turn.append(rows)
        assert ended["5"].cached_tokens == (len(request.prompt) - 1 - rows[-1] if engine is engines[0] else 0)
    assert histories[0] == histories[1]
    reused, run_anew = rows_by_turn
    assert all(rows < 40 + GREEDY.max_tokens + BLOCK_LEN for rows in reused)
    assert run_anew[-1] == len(request.prompt) - 1


@pytest.mark.parametrize("method", METHODS)
def test_choices_that_start_together_run_their_prompt_once(engines: tuple[Engine, Engine], method: str) -> None:
    prompt = prompt_of(60, seed=1000 + METHODS.index(method))
    replies = []
    for engine in engines:
        choices = [
            request_of(f"{place}", prompt, method, sampling=replace(GREEDY, temperature=1.0, seed=place))
            for place in range(8)
        ]
        ended, steps = run(engine, *choices)
        replies.append([choice.output.tolist() for choice in choices])
        if engine is engines[0]:
            rest = (len(prompt) - 1) % BLOCK_LEN
            assert num_prompt_rows(steps) == len(prompt) - 1 + 7 * rest
            assert [stats.cached_tokens for stats in ended.values()].count(0) == 1
            assert num_prompt_rows(steps[:1]) == num_prompt_rows(steps), "all of them in the first step"
    assert replies[0] == replies[1]
    assert len(set(map(tuple, replies[0]))) > 1


def test_a_long_prompt_is_run_once_by_those_that_wait_for_it_together(engines: tuple[Engine, Engine]) -> None:
    prompt = prompt_of(300, seed=77)
    ended, steps = run(engines[0], *(request_of(f"{place}", prompt, "none") for place in range(4)))
    assert num_prompt_rows(steps) <= len(prompt) - 1 + 4 * BLOCK_LEN
    assert len(ended) == 4


def test_whoever_finds_a_prompt_in_another_session_learns_what_was_learnt_from_it(
    engines: tuple[Engine, Engine],
) -> None:
    """Stores that begin empty end up the same whether the prompt was run or found."""
    prompt = prompt_of(120, seed=5)
    told = []
    for engine in engines:
        engine.sessions.acceptance_models = measured_models()  # what other tests taught the one or the other
        run(engine, request_of("first", prompt, "spine", session_id="somebody"))
        ended, _ = run(engine, request_of("second", prompt, "spine", session_id="somebody else"))
        counts = ended["second"].counts
        told.append((counts.drafted, counts.accepted, ended["second"].target_forwards))
    assert told[0] == told[1]
    assert told[0][1] > 0


def test_prompts_whose_log_probabilities_are_asked_for_are_run(engines: tuple[Engine, Engine]) -> None:
    prompt, asks = prompt_of(80, seed=9), replace(GREEDY, prompt_logprobs=2)
    run(engines[0], request_of("before", prompt))
    scored = []
    for engine in engines:
        engine.add(request_of("asks", prompt, sampling=asks))
        while engine.has_work:
            result = engine.step()
            scored += [told.logprobs for told in result.of(PromptLogprobs)]
            assert all(finished.stats.cached_tokens == 0 for finished in result.of(Finished))
    assert scored[0] == scored[1]
    assert len(scored[0]) == len(prompt)


@pytest.mark.parametrize("field", ["tenant", "cache_salt"])
def test_nothing_is_shared_across_tenants_or_salts(engines: tuple[Engine, Engine], field: str) -> None:
    prompt = prompt_of(80, seed=len(field))
    for name, expected in (("a", 0), ("b", 0), ("a", 64)):
        ended, _ = run(engines[0], request_of("it", prompt, **{field: name}))
        assert ended["it"].cached_tokens == expected


def test_steps_say_what_was_asked_for_and_found(engines: tuple[Engine, Engine]) -> None:
    prompt = prompt_of(100, seed=55)
    _, cold = run(engines[0], request_of("cold", prompt))
    _, warm = run(engines[0], request_of("warm", prompt))
    assert (sum(step.prefix_queries for step in cold), sum(step.prefix_hits for step in cold)) == (100, 0)
    assert (sum(step.prefix_queries for step in warm), sum(step.prefix_hits for step in warm)) == (100, 96)
