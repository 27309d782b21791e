"""One engine with the bundled model for the tests that need a model which can write, and numbers of threads."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.util import find_spec
from itertools import count
from types import SimpleNamespace

import pytest
import torch

from decoding.attention.triton import work
from decoding.config import EngineConfig
from decoding.costs.price import CostCurve
from decoding.drafting.block import block_drafting
from decoding.drafting.draft_model import rounds
from decoding.engine import step_costs
from decoding.engine.compiling import kernels
from decoding.engine.engine import Engine
from decoding.engine.start import load_engine
from decoding.engine.step_costs import HostStep
from decoding.engine.tally import StepTally
from decoding.weights import readers
from tests.interpreter import hasten
from tests.pairs import GivenTimings

STEP = CostCurve(base=3.5e-4, token=4e-5, key=3e-8, few=4, few_token=7e-6)  # seconds, on a quiet machine
ROUND = CostCurve(base=2e-4, token=8e-6, key=7e-9)
HARVEST, DRAFTED = 1e-7, 1e-4  # seconds of a node whose logits are learned from, and of a draft forward
MOST_ROWS = 64  # that our own kernel multiplies; of more, as of a long prompt, oneDNN does


@pytest.fixture(scope="session", autouse=True)
def no_clock_decides() -> Iterator[None]:
    """What a busy machine's Python and its draft forwards take decides nothing that engines in tests draft, and what
    products take decides nothing either."""
    host_step = StepTally.host_step

    def counted(tally: StepTally, tokens: Sequence[int], num_harvested: int) -> HostStep:
        return host_step(tally, tokens, num_harvested)._replace(seconds=0.0, probing=0.0, drafting=0.0)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StepTally, "host_step", counted)
        clock = SimpleNamespace(perf_counter=count(0.0, DRAFTED).__next__)
        for module in (rounds, block_drafting):
            patch.setattr(module, "time", clock)
        patch.setattr(step_costs, "harvest_seconds", lambda *_: HARVEST)
        patch.setattr(readers, "most_rows_worth", lambda *_: MOST_ROWS)
        yield


@pytest.fixture(scope="session", autouse=True)
def kernels_are_loaded_once() -> Iterator[None]:
    """As a worker does, though many engines start here in one process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "run_group", cache(kernels.run_group))
        yield


@pytest.fixture(scope="session", autouse=True)
def interpreted_programs_take_whole_ranges() -> Iterator[None]:
    """Attention divides no range of keys among programs, which an interpreter runs one after the other. The bits are
    the same, as attention's own tests show."""
    with pytest.MonkeyPatch.context() as patch:
        if not torch.cuda.is_available():
            patch.setattr(work, "FEW_JOBS", 0)
        yield


@pytest.fixture(scope="session", autouse=True)
def interpreter_does_nothing_in_vain() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        if os.environ.get("TRITON_INTERPRET") == "1" and find_spec("triton") is not None:
            hasten(patch)
        yield


@pytest.fixture(scope="session")
def gosling() -> Engine:
    engine = load_engine(EngineConfig(max_model_len=1500, kv_slots=12_000, threads=1), kept=GivenTimings(1500))
    hold_prices(engine)
    return engine


def hold_prices(engine: Engine) -> None:
    """Steps cost the same from here on, whatever the machine does beside the tests: so what pays is always drafted."""
    engine.costs.curve, engine.costs.draft_curve = STEP, ROUND
    engine.costs.refine = engine._note_costs = lambda *_: None  # type: ignore[method-assign]
    engine.start_afresh(0.0)


@pytest.fixture(params=[1, 2])
def num_threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)
