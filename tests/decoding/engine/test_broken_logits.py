"""A model that gives one request numbers that are not finite ends that request with a sentence, and no other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from decoding.cache.batch import StepBatch
from decoding.core.events import Failed
from decoding.core.sampling_params import SamplingParams
from decoding.engine.engine import Engine
from decoding.engine.start import start_engine
from decoding.model.device.runner import Forward
from decoding.model.target_model import TargetModel
from tests.decoding.engine.test_engine import CONFIG, GREEDY, SAMPLED, prompt_of, reply, request_of
from tests.models import tiny
from tests.pairs import GIVEN


class Breaking:
    """A model that says `number` wherever it is at `position` and after."""

    def __init__(self, model: TargetModel) -> None:
        self._model = model
        self.position, self.number = 10**6, float("nan")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def runner_over(self, *_arguments: object, **_options: object) -> Breaking:
        return self

    def launch(self, batch: StepBatch) -> Forward:
        logits_RV, seconds = self._model.launch(batch)
        logits_RV = logits_RV.clone()
        logits_RV[torch.from_numpy(batch.positions_M[batch.logit_rows_R] >= self.position)] = self.number
        return Forward(logits_RV, seconds)


@pytest.fixture(scope="module")
def model() -> Breaking:
    return Breaking(TargetModel.from_model(tiny("llama"), CONFIG))


@pytest.fixture(scope="module")
def engine(model: Breaking) -> Engine:
    return start_engine(model, CONFIG, kept=GIVEN)  # type: ignore[arg-type]


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED])
@pytest.mark.parametrize("method", ["none", "spine"])
def test_one_request_fails_with_a_sentence_and_the_others_go_on(
    engine: Engine, model: Breaking, number: float, sampling: SamplingParams, method: str
) -> None:
    model.position, model.number = 10**6, number
    prompts = [prompt_of(length, length) for length in (12, 80, 15)]
    alone = [reply(engine, request_of(f"alone{place}", prompt, sampling)) for place, prompt in enumerate(prompts)]
    model.position = 100
    requests = [request_of(f"{place}", prompt, sampling, method) for place, prompt in enumerate(prompts)]
    for request in requests:
        engine.add(request)
    broken: list[Failed] = []
    for _ in range(500):
        if not engine.has_work:
            break
        broken += engine.step().of(Failed)
        engine.pool.check_integrity()
    assert [each.request_id for each in broken] == ["1"]
    assert "not finite at position" in broken[0].message
    assert [request.output.tolist() for request in (requests[0], requests[2])] == [alone[0], alone[2]]
    part = requests[1].output.tolist()
    assert part == alone[1][: len(part)]
    assert 0 < len(part) < len(alone[1])
    assert engine.pool.num_held == 0
    assert np.isfinite(engine.sessions.open("", "1").ngrams.arrays.probabilities).all()
