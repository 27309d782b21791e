"""A model with experts in an engine: the same replies however they come about, and prices that know its experts."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from decoding.cache.batch import StepBatch
from decoding.cache.block_pool import BLOCK_LEN
from decoding.core.request import Request
from decoding.core.sampling_params import SamplingParams
from decoding.core.speculation_params import SpeculationParams
from decoding.costs.credit import LARGEST_LOSS
from decoding.costs.price import ExpertCosts
from decoding.engine.engine import Engine
from decoding.engine.start import start_engine
from decoding.model.kept.measurements import KeptMeasurements
from decoding.model.target_model import TargetModel
from decoding.model.timing import ROWS
from tests.decoding.engine.test_preemption import again, finish, requests_of
from tests.models import VOCAB_SIZE, tiny
from tests.pairs import CONFIG, MAX_MODEL_LEN, GivenTimings, draft_of, prompt_of, reply, target_of

FOLDER = TemporaryDirectory()
KEPT = KeptMeasurements(Path(FOLDER.name))  # so that the second engine times nothing again
BASE, TOKEN = 2e-4, 1e-5  # seconds of a step, and of each token
AT_RANDOM = ExpertCosts(seconds=1e-4, num_chosen=4, num_experts=32)
REPLY_LEN, NUM_REPLIES = 128, 3


@cache
def models() -> tuple[TargetModel, TargetModel]:
    """What both engines run."""
    return target_of("qwen3_moe"), draft_of("qwen3_moe")


def engine_of(num_slots: int, **options: object) -> Engine:
    config = replace(CONFIG, kv_slots=num_slots, max_model_len=None, **options)  # type: ignore[arg-type]
    target, draft = models()
    return start_engine(target, config, draft_model=draft, kept=KEPT)


def test_replies_are_the_plain_ones_in_any_batch_tree_chunk_and_after_preemption() -> None:
    engine = engine_of(40 * BLOCK_LEN, max_batch_rows=64, max_running=16)
    requests = requests_of(15, 0)
    for request in requests:
        engine.add(request)
    ended, _, scored = finish(engine, with_guest=True)
    assert sum(stats.preemptions for stats in ended.values()) > 0
    assert sum(stats.counts.accepted for stats in ended.values()) > 0
    alone, roomy = [again(request) for request in requests], engine_of(8192)
    for request in alone:
        roomy.add(request)
    _, _, expected = finish(roomy)
    assert [request.output.tolist() for request in requests] == [request.output.tolist() for request in alone]
    assert scored == expected
    experts = engine.costs.curve.experts
    assert experts is not None
    assert (experts.num_chosen, experts.num_experts) == (2, 4)
    assert 0 <= experts.novelty <= 1


class TimedModel(TargetModel):
    """A model whose forwards take a given time on the clock `now`: as they read experts, whatever the machine does."""

    now = 0.0

    def _run(self, batch: StepBatch) -> torch.Tensor:
        logits_RV = super()._run(batch)
        if self.mixtures is not None:
            TimedModel.now += seconds_of(batch.num_tokens, self.mixtures.num_distinct())
        return logits_RV


class TimedAtStart(GivenTimings):
    """What forwards of `TimedModel` take whose tokens choose experts as if at random."""

    def seconds(self, num_rows: int, _context: int) -> float:
        return seconds_of(num_rows, AT_RANDOM.num_distinct(num_rows))

    def experts(self) -> list[tuple[int, float]]:
        return [(num_rows, AT_RANDOM.num_distinct(num_rows)) for num_rows in ROWS]


def seconds_of(num_tokens: int, num_distinct: float) -> float:
    return BASE + TOKEN * num_tokens + AT_RANDOM.seconds * num_distinct


def seconds_to_reply(engine: Engine, request: Request) -> float:
    started = TimedModel.now
    reply(engine, request)
    return TimedModel.now - started


def request_for(prompt: NDArray[np.int32], method: str, prediction: NDArray[np.int32]) -> Request:
    """One that finds nothing of another's."""
    sampling = SamplingParams(max_tokens=REPLY_LEN, temperature=0.0, ignore_eos=True)
    name, speculation = f"{method} {len(prompt)}", SpeculationParams(method=method)
    own = {"session_id": name, "cache_salt": name, "prediction": prediction}
    return Request(id=name, prompt=prompt, sampling=sampling, speculation=speculation, **own)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def timed_model() -> TargetModel:
    return TimedModel.from_model(tiny("qwen3_moe", num_experts=32, num_experts_per_tok=4), CONFIG)


@pytest.mark.parametrize(
    ("chance", "least"), [(1.0, 1.5), (0.8, 1.0), *((chance, 1 - LARGEST_LOSS) for chance in (0.5, 0.2, 0.0))]
)
def test_auto_with_a_prediction_is_hardly_ever_slower_than_plain_decoding(
    monkeypatch: pytest.MonkeyPatch, timed_model: TargetModel, chance: float, least: float
) -> None:
    """On a clock that goes as forwards read experts, with a prediction whose tokens are right with some chance."""
    monkeypatch.setattr(time, "perf_counter", lambda: TimedModel.now)
    engine = start_engine(timed_model, CONFIG, kept=TimedAtStart(MAX_MODEL_LEN))
    experts = engine.costs.curve.experts
    assert experts is not None
    assert experts.seconds == pytest.approx(AT_RANDOM.seconds)
    random, plain_seconds, drafted_seconds = np.random.default_rng(0), 0.0, 0.0
    for seed in range(NUM_REPLIES):
        prompt = prompt_of(40 + seed, seed)
        plain = request_for(prompt, "none", prompt[:0])
        plain_seconds += seconds_to_reply(engine, plain)
        wrong = random.integers(3, VOCAB_SIZE, REPLY_LEN, dtype=np.int32)
        drafted = request_for(prompt, "auto", np.where(random.random(REPLY_LEN) < chance, plain.output, wrong))
        drafted_seconds += seconds_to_reply(engine, drafted)
        assert drafted.output.tolist() == plain.output.tolist()
    assert plain_seconds / drafted_seconds >= least
