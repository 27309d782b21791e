"""A draft model or head of unknown worth is tried at a bounded cost, and then asked where it pays. No clock is read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from decoding.core.sampling_params import SamplingParams
from decoding.costs.credit import LARGEST_LOSS, SHORT_REPLY, TRIAL_SHARE
from decoding.costs.price import CostCurve, Curves
from decoding.costs.trials import ENOUGH
from decoding.drafting.draft_model.state import DraftCost, DraftModelState
from decoding.drafting.eagle.head_model import HeadModel
from decoding.engine.engine import Engine
from decoding.engine.start import AnyDraftModel, load_engine, start_engine
from decoding.engine.step_costs import HostStep
from decoding.model.kept.measurements import KeptMeasurements
from decoding.model.target_model import TargetModel
from decoding.model.timing import ModelTimings
from tests.heads import new_head
from tests.models import correlated, tiny
from tests.mtp import mtp_of
from tests.pairs import (
    CONFIG,
    GIVEN,
    GREEDY,
    MAX_MODEL_LEN,
    SAMPLED,
    GivenTimings,
    draft_of,
    finish,
    prompt_of,
    request_of,
    target_of,
    write_tokenizer,
)

NUM_TOKENS = 96  # of a reply
# Seconds, so that a plain step takes one, and a token costs 0.88 tokens with the draft model's part and its node's:
# more than the hit rate that a draft model begins with, and less than a good one's.
STEP, DEAR = CostCurve(0.85, 0.15, 0.0), CostCurve(0.72, 0.01, 0.0)
CHEAPER = replace(DEAR, base=0.52)


class GivenCosts(Curves):
    """No step changes them. seconds: that steps have taken by them; num_asked: of these steps asked the draft model."""

    def __init__(self) -> None:
        super().__init__(STEP, DEAR)
        self.seconds, self.num_asked = 0.0, 0

    def note_step(self, host: HostStep, costs: Sequence[DraftCost], num_tokens: int = 1) -> None:  # noqa: ARG002
        self.seconds += self.curve.step_seconds([num_tokens], [0]) + sum(cost.seconds for cost in costs)
        self.num_asked += any(cost.num_forwards for cost in costs)

    def refine(self) -> None:
        """Nothing was timed."""


class KeptWorths(GivenTimings):
    """Timings are given, and what draft models are worth is kept in a folder."""

    def __init__(self, folder: Path) -> None:
        super().__init__(MAX_MODEL_LEN)
        self._worths = KeptMeasurements(folder)

    def read(self, fingerprint: str, kind: type[Any]) -> Any:
        return super().read(fingerprint, kind) if kind is ModelTimings else self._worths.read(fingerprint, kind)

    def write(self, fingerprint: str, timings: Any) -> None:
        if not isinstance(timings, ModelTimings):
            self._worths.write(fingerprint, timings)


@pytest.fixture
def costs(monkeypatch: pytest.MonkeyPatch) -> GivenCosts:
    """Draft forwards take what these costs say."""
    given, note_forward = GivenCosts(), DraftModelState.note_forward

    def note_given(state: DraftModelState, seconds: float, num_tokens: int) -> None:  # noqa: ARG001 - of a clock
        assert given.draft_curve is not None
        note_forward(state, given.draft_curve.base + given.draft_curve.seconds_of_tokens(num_tokens), num_tokens)

    monkeypatch.setattr(DraftModelState, "note_forward", note_given)
    return given


class Bench:
    """Asks an engine with these costs one reply after the other, each in a session of its own."""

    def __init__(self, engine: Engine, costs: GivenCosts) -> None:
        self.engine, self.costs = engine, costs
        engine.costs = costs  # type: ignore[assignment]
        engine.start_afresh(0.0)
        self._number = 0

    def ask(self, method: str = "dynamic", sampling: SamplingParams = GREEDY, length: int = 12) -> tuple[float, int]:
        """Seconds of a reply after its first step for each token after it, and how many steps asked the draft model."""
        self._number += 1
        self.costs.seconds = self.costs.num_asked = 0
        sampling = replace(sampling, max_tokens=NUM_TOKENS)
        request = request_of(f"{self._number}", prompt_of(length, self._number), sampling, method, max_nodes=None)
        self.engine.add(request)
        self.engine.step()
        num_first = request.num_output
        finish(self.engine)
        return self.costs.seconds / (NUM_TOKENS - num_first), self.costs.num_asked


Drafter = Callable[[TargetModel], AnyDraftModel]  # what drafts for a target


def bench_of(costs: GivenCosts, drafter: Drafter, kept: KeptMeasurements = GIVEN) -> Bench:
    target = target_of("llama")
    return Bench(start_engine(target, CONFIG, draft_model=drafter(target), kept=kept), costs)


def good_draft(target: TargetModel) -> TargetModel:  # noqa: ARG001 - the same weights
    return TargetModel.from_model(tiny("llama"), CONFIG)


def useless_draft(target: TargetModel) -> TargetModel:  # noqa: ARG001 - agrees with any target by chance alone
    return TargetModel.from_model(correlated("llama", 30.0), CONFIG)


def untrained_head(target: TargetModel) -> HeadModel:
    return HeadModel(new_head(tiny("llama").get_input_embeddings().weight), target)


@pytest.mark.parametrize("sampling", [GREEDY, replace(SAMPLED, temperature=0.1)], ids=["greedy", "sampled"])
@pytest.mark.parametrize("method", ["dynamic", "auto"])
def test_a_good_draft_model_is_asked_in_the_first_reply_and_pays_from_then_on(
    costs: GivenCosts, method: str, sampling: SamplingParams
) -> None:
    bench = bench_of(costs, good_draft)
    first, num_asked = bench.ask(method, sampling)
    assert num_asked > 0
    assert first <= 1 + TRIAL_SHARE
    bench.ask(method, sampling)
    third, num_asked = bench.ask(method, sampling)
    assert third < 0.97
    assert num_asked > 0


@pytest.mark.parametrize("drafter", [useless_draft, untrained_head])
@pytest.mark.parametrize("method", ["dynamic", "auto"])
def test_one_of_no_use_costs_each_reply_little_and_is_dropped(costs: GivenCosts, drafter: Drafter, method: str) -> None:
    bench, num_asked = bench_of(costs, drafter), []
    for _ in range(2 * ENOUGH):
        seconds, count = bench.ask(method)
        most = LARGEST_LOSS if method == "auto" else TRIAL_SHARE  # stores may be wrong as well
        assert seconds <= 1 + most * SHORT_REPLY / (NUM_TOKENS - 1)
        num_asked.append(count)
    assert 0 < num_asked[0] <= 4
    assert sum(num_asked) <= (2 if method == "auto" else 1) * (ENOUGH + 4), "stores that gain make prices others"
    assert num_asked[-4:] == [0] * 4


def test_other_prices_let_it_be_tried_again(costs: GivenCosts) -> None:
    bench = bench_of(costs, useless_draft)
    while bench.ask()[1]:
        pass
    costs.draft_curve = CHEAPER
    seconds, num_asked = bench.ask()
    assert num_asked > 0
    assert seconds <= 1 + TRIAL_SHARE * SHORT_REPLY / (NUM_TOKENS - 1)
    total = num_asked + sum(bench.ask()[1] for _ in range(2 * ENOUGH))
    assert total <= ENOUGH + 4
    assert bench.ask()[1] == 0


def test_one_that_costs_more_than_any_may_bring_is_not_tried(costs: GivenCosts) -> None:
    costs.draft_curve = replace(DEAR, base=0.9)
    bench = bench_of(costs, good_draft)
    assert [bench.ask()[1] for _ in range(3)] == [0, 0, 0]


def test_what_a_prompt_takes_to_be_read_waits_until_the_server_has_earned_it(costs: GivenCosts) -> None:
    """A trial of `auto` reads no more than a share of what was emitted; who is asked for by name reads in any case."""
    costs.draft_curve = replace(DEAR, token=0.1, base=0.62)
    bench, length = bench_of(costs, good_draft), 78  # 62 tokens are beyond what a step reads by itself: 6.2 tokens
    num_asked = [bench.ask("auto", length=length)[1] for _ in range(3)]
    assert num_asked[0] == num_asked[1] == 0
    assert num_asked[2] > 0
    assert bench_of(costs, good_draft).ask("dynamic", length=length)[1] > 0


def test_what_was_learned_is_there_after_a_restart_for_the_same_pair(costs: GivenCosts, tmp_path: Path) -> None:
    kept = KeptWorths(tmp_path)
    bench = bench_of(costs, good_draft, kept)
    for _ in range(3):
        last, _ = bench.ask()
    bench.engine.on_idle()
    (hit_rate, count), *_ = [model.hit_rate for model in bench.engine.sessions.acceptance_models]
    again = bench_of(costs, good_draft, kept)
    assert again.engine.sessions.acceptance_models[0].hit_rate.tolist() == [hit_rate, count]
    first, num_asked = again.ask()
    assert num_asked > ENOUGH
    assert first == pytest.approx(last, rel=0.2)
    fresh = bench_of(costs, lambda _: draft_of("llama"), kept)
    assert fresh.engine.sessions.acceptance_models[0].hit_rate[0] < hit_rate, "another draft model starts anew"


def test_a_draft_model_that_was_dropped_is_not_tried_again_after_a_restart(costs: GivenCosts, tmp_path: Path) -> None:
    kept = KeptWorths(tmp_path)
    bench = bench_of(costs, useless_draft, kept)
    while bench.ask()[1]:
        pass
    bench.engine.close(0.0)
    assert bench_of(costs, useless_draft, kept).ask()[1] == 0


def test_an_mtp_module_is_tried_alike(costs: GivenCosts, tmp_path: Path) -> None:
    model = write_tokenizer(mtp_of("mimo").write(tmp_path))
    config = replace(CONFIG, model=str(model), device="cpu", dtype="float32")
    bench = Bench(load_engine(config, kept=GIVEN), costs)
    assert bench.engine.draft_model is not None
    seconds, num_asked = bench.ask()
    assert num_asked > 0
    assert seconds <= 1 + TRIAL_SHARE * SHORT_REPLY / (NUM_TOKENS - 1)
