"""Whatever a draft model drafts, alone or beside other methods, every request gets the tokens of plain decoding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest
from numpy.typing import NDArray
from transformers import AutoTokenizer

from decoding.config import KvDtype, Weights
from decoding.core.events import Finished
from decoding.core.request import FinishReason
from decoding.core.sampling_params import SamplingParams
from decoding.core.stats import RequestStats
from decoding.engine.engine import Engine
from decoding.engine.start import load_engine, start_engine
from decoding.model.checkpoint import BUNDLED_FOLDER
from decoding.model.target_model import TargetModel
from tests.models import tiny
from tests.pairs import (
    CONFIG,
    GIVEN,
    GREEDY,
    SAMPLED,
    GivenTimings,
    draft_of,
    engine_of,
    finish,
    prompt_of,
    reply,
    request_of,
)

METHODS = {
    "dynamic": {"max_nodes": 8},
    "linear": {"max_depth": 4},
    "fixed": {"branching": 2, "max_depth": 4, "max_nodes": 8},
    "auto": {"max_nodes": 8},
}
LAWS = {"greedy": GREEDY, "sampled": SAMPLED}
TEXTS = ("def add(a, b):\n    return a + b\n\ndef sub(a, b):\n", "Once upon a time, there was a little girl who")


@dataclass(frozen=True)
class Pair:
    """plain: by law, the reply of plain decoding to every prompt."""

    engine: Engine
    prompts: Sequence[NDArray[np.int32]]
    plain: dict[str, list[list[int]]]


PAIRS = [
    "llama",
    pytest.param("gpt_neox", marks=pytest.mark.slow),
    *("gosling", "gosling int8", "gosling int4", "gosling over bfloat16", "gosling over int8"),
]

WEIGHTS: dict[str, Weights] = {
    "gosling": "auto",
    "gosling over bfloat16": "auto",
    "gosling over int8": "auto",
    "gosling int8": "int8",
    "gosling int4": "int4",
}

OVER: dict[str, KvDtype] = {"gosling over bfloat16": "bfloat16", "gosling over int8": "int8"}


@pytest.fixture(scope="module", params=PAIRS)
def pair(request: pytest.FixtureRequest) -> Pair:
    if request.param.startswith("gosling"):
        weights: Weights = WEIGHTS[request.param]
        tokenizer = AutoTokenizer.from_pretrained(BUNDLED_FOLDER)
        prompts = [np.array(tokenizer.encode(text), np.int32) for text in TEXTS]
        kv_dtype: KvDtype = OVER.get(request.param, "auto")
        config = replace(CONFIG, model="gosling", device="cpu", dtype="float32", kv_dtype=kv_dtype, weights=weights)
        engine = load_engine(config, kept=GIVEN)
    else:
        prompts = [prompt_of(40, seed) for seed in range(3)]
        engine = engine_of(request.param)
    if not engine.model.is_exact:
        pytest.skip("this processor does not give row-invariant arithmetic")
    plain = {law: [reply(engine, request_of("plain", prompt, LAWS[law])) for prompt in prompts] for law in LAWS}
    return Pair(engine, prompts, plain)


def assert_some_accepted_and_some_rejected(stats: Sequence[RequestStats]) -> None:
    drafted = sum(each.counts.drafted for each in stats)
    assert 0 < sum(each.counts.accepted for each in stats) < drafted


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("method", METHODS)
def test_a_request_alone_gets_the_plain_tokens(pair: Pair, method: str, law: str) -> None:
    stats = []
    for prompt, plain in zip(pair.prompts, pair.plain[law], strict=True):
        drafted = request_of(method, prompt, LAWS[law], method, **METHODS[method])
        pair.engine.add(drafted)
        ended, _ = finish(pair.engine)
        assert drafted.output.tolist() == plain
        stats.append(ended[method])
    assert {name for each in stats for name in each.steps_by_method} == {method}
    assert sum(each.counts.drafted_by_source["draft_model"] for each in stats) > 0
    if method in ("dynamic", "auto"):
        assert all(0 < each.foretold_by_source["draft_model"] <= each.emitted for each in stats)
    assert all(0 < each.draft_model_seconds < each.decode_seconds + each.time_to_first_token for each in stats)
    assert_some_accepted_and_some_rejected(stats)


def test_requests_of_all_methods_together_get_the_plain_tokens(pair: Pair) -> None:
    methods = ["dynamic", "spine", "linear", "stand", "fixed", "auto", "dynamic", "none"]
    requests, plain = [], []
    for number, method in enumerate(methods * 2):
        place = number % len(pair.prompts)
        law = "sampled" if number % 4 < 2 else "greedy"
        name = f"{number} {method}"
        requests.append(request_of(name, pair.prompts[place], LAWS[law], method, **METHODS.get(method, {})))
        plain.append(pair.plain[law][place])
    num_together = 0
    ended: dict[str, RequestStats] = {}
    for request in requests:
        pair.engine.add(request)
        result = pair.engine.step()
        ended.update({finished.request_id: finished.stats for finished in result.of(Finished)})
        num_together = max(num_together, pair.engine.stats().running)
    ended.update(finish(pair.engine)[0])
    assert [request.output.tolist() for request in requests] == plain
    assert num_together > 4
    drafting = [stats for stats in ended.values() if set(stats.steps_by_method) & {"dynamic", "linear", "fixed"}]
    assert len(drafting) >= 8
    assert_some_accepted_and_some_rejected(drafting)


@pytest.mark.parametrize("method", ["dynamic", "linear", "fixed"])
def test_a_stop_inside_an_accepted_run_cuts_it_there(pair: Pair, method: str) -> None:
    num_inside = 0
    for prompt, plain in zip(pair.prompts, pair.plain["greedy"], strict=True):
        for stop in dict.fromkeys(plain[3:]):
            sampling: SamplingParams = replace(GREEDY, stop_token_ids=(stop,))
            request = request_of("cut", prompt, sampling, method, **METHODS[method])
            pair.engine.add(request)
            ended, _ = finish(pair.engine)
            assert request.output.tolist() == plain[: plain.index(stop) + 1]
            assert request.finish_reason is FinishReason.STOP
            stats = ended["cut"]
            assert stats.counts.accepted == sum(stats.counts.accepted_by_source.values())
            assert stats.emitted >= stats.counts.accepted + stats.target_forwards - 1
            num_inside += stats.emitted < stats.counts.accepted + stats.target_forwards
            if num_inside:
                return
    raise AssertionError("no stop fell inside an accepted run")


def test_trees_end_where_the_positions_end_that_a_model_has_learned() -> None:
    config = replace(CONFIG, max_model_len=None)
    target = TargetModel.from_model(tiny("gpt2"), config)
    engine = start_engine(target, config, draft_model=draft_of("gpt2", None), kept=GivenTimings(512))
    prompt = np.resize(prompt_of(7), target.max_model_len - GREEDY.max_tokens)
    plain = reply(engine, request_of("plain", prompt))
    for method in ("auto", "spine", "dynamic"):
        drafted = request_of(method, prompt, GREEDY, method, max_nodes=32)
        engine.add(drafted)
        ended, _ = finish(engine)
        assert drafted.output.tolist() == plain
        counts = ended[method].counts
        assert 0 < counts.accepted < counts.drafted
        assert counts.accepted + ended[method].target_forwards == GREEDY.max_tokens


@pytest.mark.parametrize("method", ["auto", "dynamic"])
def test_a_draft_model_that_is_not_among_the_sources_does_not_run(pair: Pair, method: str) -> None:
    options = {"sources": frozenset({"context", "adjacency", "ngram"}), "max_nodes": 8}
    request = request_of("stores", pair.prompts[0], GREEDY, method, **options)
    pair.engine.add(request)
    ended, _ = finish(pair.engine)
    assert request.output.tolist() == pair.plain["greedy"][0]
    assert ended["stores"].draft_model_seconds == 0
    assert "draft_model" not in ended["stores"].foretold_by_source
