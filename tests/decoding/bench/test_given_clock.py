"""By a given clock runs take what is given for them, to the last digit, and nothing else."""

import time

import numpy as np
import pytest

from decoding.bench.auto.given_clock import GivenClock, GivenCosts, GivenEngine
from decoding.bench.auto.runs import Run, measure_run
from decoding.bench.scripts import Script, Turn
from decoding.config import EngineConfig
from decoding.costs.curve import CostCurve
from decoding.costs.step_fit import Beside
from decoding.model.target_model import TargetModel
from tests.models import tiny

TARGET = CostCurve(base=1e-2, row=1e-3, key=1e-6)
COSTS = GivenCosts(
    TARGET, TARGET, Beside(step=1e-4, request=2e-5, look=5e-5, tree=1e-4, node=1e-5, harvest=1e-5), start=1e-3
)
PROMPT_LEN, NUM_TOKENS = 32, 24


def runs(*methods: str) -> list[Run]:
    """Of one user who asks once, in an engine of its own."""
    prompt = np.tile(np.arange(3, 11, dtype=np.int32), PROMPT_LEN // 8)
    script = Script(name="repetition", turns=(Turn(prompt, 0, False),), max_tokens=NUM_TOKENS, ignore_eos=True)
    config = EngineConfig(max_model_len=300, kv_slots=8192, threads=1)
    with GivenClock() as clock:
        engine = GivenEngine(TargetModel.from_model(tiny("llama", 3), config), config, None, COSTS, clock)
        return [measure_run(engine, script, 0.0, 1, method, clock) for method in methods]


def test_a_plain_reply_takes_what_its_steps_are_given_to_take() -> None:
    [run] = runs("none")
    beside = COSTS.beside
    steps = [TARGET.step_seconds([PROMPT_LEN], [0])]
    steps += [TARGET.step_seconds([1], [PROMPT_LEN + place]) for place in range(NUM_TOKENS - 1)]
    others = NUM_TOKENS * beside.step + (NUM_TOKENS - 1) * beside.request + (PROMPT_LEN - 1) * beside.harvest
    assert run.seconds == pytest.approx(sum(steps) + others)
    assert time.perf_counter() != time.perf_counter(), "the clock is left"


def test_a_run_is_the_same_to_the_last_digit() -> None:
    first, second = runs("none", "auto"), runs("none", "auto")
    assert first == second
    none, auto = first
    assert auto.fingerprint == none.fingerprint
    assert auto.forwards < none.forwards
    assert auto.seconds < none.seconds
