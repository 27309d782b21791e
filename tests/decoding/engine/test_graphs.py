"""An engine that replays captured forwards gives every request the tokens of the one that runs each operation."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from decoding.core.request import Request
from decoding.core.sampling_params import SamplingParams
from decoding.engine.engine import Engine
from decoding.engine.start import start_engine
from decoding.model.device import graph_runner
from decoding.model.device.graph_runner import GraphRunner
from decoding.model.target_model import TargetModel
from tests.asking import own_nodes
from tests.models import correlated, tiny
from tests.pairs import CONFIG, GREEDY, NOISE, SAMPLED, GivenTimings, finish, prompt_of, reply, request_of
from tests.recording import RecordingCapture

SMALL_LEN = 160
SMALL = replace(CONFIG, max_model_len=SMALL_LEN, kv_slots=2048, max_batch_rows=64, max_nodes=16)
STATIC = replace(SMALL, attention="padded")
METHODS = ("none", "stand", "dynamic", "fixed", "eagle", "auto")


def asked(name: str, prompt: NDArray[np.int32], sampling: SamplingParams, method: str) -> Request:
    return request_of(name, prompt, sampling, method, max_nodes=own_nodes(method, SMALL.max_nodes))


@pytest.fixture(scope="module")
def plain() -> Engine:
    return start_engine(TargetModel.from_model(tiny("llama"), SMALL), SMALL, kept=GivenTimings(SMALL_LEN))


@pytest.fixture(scope="module")
def captured() -> Engine:
    """Both models' forwards are captured; prompts of more than 24 rows are run as they come."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(graph_runner, "BUCKETS", (1, 4, 8, 24))
        models = [
            TargetModel.from_model(each, STATIC, RecordingCapture())
            for each in (tiny("llama"), correlated("llama", NOISE))
        ]
        return start_engine(models[0], STATIC, draft_model=models[1], kept=GivenTimings(SMALL_LEN))


@pytest.mark.parametrize("method", METHODS)
def test_each_method_gives_the_plain_tokens(plain: Engine, captured: Engine, method: str) -> None:
    for number, sampling in enumerate((GREEDY, SAMPLED)):
        prompt = prompt_of(40, number)
        expected = reply(plain, request_of(f"plain {number}", prompt, sampling))
        assert reply(captured, asked(f"{method} {number}", prompt, sampling, method)) == expected


def test_requests_of_all_methods_together_get_the_plain_tokens(plain: Engine, captured: Engine) -> None:
    methods = captured.methods
    prompts = [prompt_of(20 + 3 * number, number) for number in range(len(methods))]
    expected = [reply(plain, request_of("plain", prompt, SAMPLED)) for prompt in prompts]
    requests = [asked(method, prompt, SAMPLED, method) for method, prompt in zip(methods, prompts, strict=True)]
    for request in requests:
        captured.add(request)
        captured.step()
    _, steps = finish(captured)
    assert [request.output.tolist() for request in requests] == expected
    assert len({stats.rows for stats in steps}) > 3, "steps of several sizes"


def test_small_steps_are_replayed(captured: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    runner, sizes = captured._runner, []
    assert isinstance(runner, GraphRunner)
    launch = TargetModel.launch

    def counted(self: TargetModel, *arguments: object) -> object:
        sizes.append(arguments[0].num_tokens)  # type: ignore[attr-defined]
        return launch(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(TargetModel, "launch", counted)
    reply(captured, request_of("long", prompt_of(60), GREEDY, "auto"))
    assert sizes
    assert min(sizes) > 24
