"""Whatever a head drafts, every request gets the tokens of plain decoding: alone, together, found, given up."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, replace

import numpy as np
import pytest

from decoding.cache.block_pool import BLOCK_LEN
from decoding.core.events import Finished
from decoding.core.grammar import Grammar
from decoding.core.request import FinishReason, Request
from decoding.core.sampling_params import SamplingParams
from decoding.core.stats import RequestStats
from decoding.drafting.eagle.head_model import HeadModel
from decoding.engine.engine import Engine
from decoding.engine.start import start_engine
from decoding.model.target_model import TargetModel
from tests.head_bench import assert_some_accepted_and_some_rejected
from tests.heads import trained_head
from tests.pairs import CONFIG, GIVEN, GREEDY, SAMPLED, finish, prompt_of, request_of, target_of, write_tokenizer

METHODS = {"dynamic": {"max_nodes": 12}, "eagle": {}, "linear": {"max_depth": 4}, "fixed": {"max_depth": 3}}
KINDS = {
    "greedy": GREEDY,
    "sampled": SAMPLED,
    "greedy, penalties": replace(GREEDY, frequency_penalty=0.7, repetition_penalty=1.2, logit_bias={9: 1.5}),
    "sampled, penalties": replace(SAMPLED, presence_penalty=0.9, bad_words=((17, 40), (8,)), min_p=0.02),
}


@dataclass(frozen=True)
class Bench:
    target: TargetModel
    engine: Engine
    head: HeadModel


@pytest.fixture(scope="module", params=["llama", pytest.param("gpt_neox", marks=pytest.mark.slow)])
def bench(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Bench:
    target = target_of(request.param)
    if not target.is_exact:
        pytest.skip("this processor does not give row-invariant arithmetic")
    head = HeadModel(deepcopy(trained_head(request.param)), target)
    config = replace(CONFIG, model=str(write_tokenizer(tmp_path_factory.mktemp("tokenizer"))))
    return Bench(target, start_engine(target, config, draft_model=head, kept=GIVEN), head)


def run(engine: Engine, *requests: Request) -> dict[str, RequestStats]:
    for request in requests:
        engine.add(request)
    return finish(engine)[0]


def outputs(requests: Sequence[Request]) -> list[list[int]]:
    return [request.output.tolist() for request in requests]


def plain_of(requests: Sequence[Request]) -> list[Request]:
    return [request_of(f"plain {request.id}", request.prompt, request.sampling) for request in requests]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("method", METHODS)
def test_a_request_alone_gets_the_plain_tokens(bench: Bench, method: str, kind: str) -> None:
    stats = []
    for seed in range(3):
        drafted = request_of(method, prompt_of(40, seed), KINDS[kind], method, **METHODS[method])
        plain = plain_of([drafted])
        run(bench.engine, *plain)
        stats += run(bench.engine, drafted).values()
        assert outputs([drafted]) == outputs(plain)
    assert {name for each in stats for name in each.steps_by_method} == {method}
    assert_some_accepted_and_some_rejected(stats)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("method", ["dynamic", "eagle"])
def test_a_grammar_binds_drafts_and_replies_alike(bench: Bench, method: str, temperature: float) -> None:
    stats = []
    for seed in range(4):
        sampling = SamplingParams(
            max_tokens=60,
            temperature=temperature,
            seed=seed,
            grammar=Grammar("regex", "([A-z -/]{2,9}[0-9]{1,3}){4,9}"),
        )
        drafted = request_of(method, prompt_of(30, seed), sampling, method, max_nodes=16)
        plain = plain_of([drafted])
        run(bench.engine, *plain)
        stats += run(bench.engine, drafted).values()
        assert outputs([drafted]) == outputs(plain)
        assert drafted.finish_reason in (FinishReason.STOP, FinishReason.LENGTH)
    assert sum(each.counts.drafted_by_source.get("draft_model", 0) for each in stats) > 20


@pytest.mark.parametrize("method", ["dynamic", "eagle"])
def test_four_choices_of_a_prompt_and_turns_that_find_it_get_the_plain_tokens(bench: Bench, method: str) -> None:
    history, stats = prompt_of(50, 77), []
    for turn in range(3):
        choices = [
            request_of(f"{turn} {seed}", history, replace(SAMPLED, seed=seed), method, max_nodes=12)
            for seed in range(4)
        ]
        ended = run(bench.engine, *choices)
        stats += ended.values()
        assert sum(each.cached_tokens for each in ended.values()) >= (3 + (turn > 0)) * (49 // BLOCK_LEN) * BLOCK_LEN
        plain = plain_of(choices)
        run(bench.engine, *plain)
        assert outputs(choices) == outputs(plain)
        history = np.concatenate((choices[turn].tokens, prompt_of(9, turn)))
    assert_some_accepted_and_some_rejected(stats)


def test_requests_of_all_methods_together_get_the_plain_tokens(bench: Bench) -> None:
    methods = ["dynamic", "spine", "eagle", "stand", "linear", "auto", "fixed", "none"] * 2
    requests = [
        request_of(f"{place}", prompt_of(20 + 9 * place, place), SAMPLED if place % 4 < 2 else GREEDY, method)
        for place, method in enumerate(methods)
    ]
    num_together, ended = 0, {}
    for request in requests:
        bench.engine.add(request)
        result = bench.engine.step()
        ended.update({finished.request_id: finished.stats for finished in result.of(Finished)})
        num_together = max(num_together, bench.engine.stats().running)
    ended |= finish(bench.engine)[0]
    plain = plain_of(requests)
    run(bench.engine, *plain)
    assert outputs(requests) == outputs(plain)
    assert num_together > 4
    assert_some_accepted_and_some_rejected([each for each in ended.values() if "eagle" in each.steps_by_method])


@pytest.mark.parametrize("prefix_cache", [True, False])
def test_short_of_room_replies_are_the_plain_tokens(bench: Bench, *, prefix_cache: bool) -> None:
    config = replace(CONFIG, kv_slots=20 * BLOCK_LEN, max_model_len=None, max_batch_rows=64, max_running=8)
    engine = start_engine(bench.target, replace(config, prefix_cache=prefix_cache), draft_model=bench.head, kept=GIVEN)
    generator = np.random.default_rng(4)
    requests = []
    for place in range(14):
        sampling = replace(
            GREEDY, max_tokens=int(generator.integers(20, 90)), seed=place, temperature=0.8 * (place % 2)
        )
        prompt = np.concatenate((prompt_of(20, 1), prompt_of(int(generator.integers(1, 40)), place)))
        method = ("dynamic", "eagle", "auto")[place % 3]
        requests.append(request_of(f"{place}", prompt, sampling, method))
    ended = run(engine, *requests)
    assert sum(each.preemptions for each in ended.values()) > 1
    plain = plain_of(requests)
    run(bench.engine, *plain)
    assert outputs(requests) == outputs(plain)
    assert_some_accepted_and_some_rejected([each for each in ended.values() if "eagle" in each.steps_by_method])
