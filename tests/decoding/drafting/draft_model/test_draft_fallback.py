"""Where the draft model can do no more, another method goes on: the tokens stay and the blocks come back."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace

import pytest
from transformers import PreTrainedModel

from decoding.cache.batch import StepBatch
from decoding.config import EngineConfig
from decoding.core.request import Request
from decoding.core.sampling_params import SamplingParams
from decoding.core.stats import RequestStats, StepStats
from decoding.costs.price import DraftBudget, NodePrice
from decoding.engine.engine import Engine
from decoding.engine.sequence_step import SequenceStep
from decoding.engine.start import start_engine
from decoding.errors import RequestRejected
from decoding.model.device.capture import Capture
from decoding.model.device.runner import Forward, Progress
from decoding.model.target_model import TargetModel
from tests.models import correlated, tiny
from tests.pairs import CONFIG, GIVEN, GREEDY, NOISE, SAMPLED, draft_of, finish, prompt_of, reply, request_of, target_of

METHODS = ["dynamic", "linear", "fixed"]


class BreakingModel(TargetModel):
    """Ends one forward's last row in numbers that are none: the `countdown`-th from now of those that give logits."""

    def __init__(
        self, model: PreTrainedModel, config: EngineConfig, progress: Progress, capture: Capture | None = None
    ) -> None:
        self.countdown = 0
        super().__init__(model, config, progress, capture)

    def launch(self, batch: StepBatch) -> Forward:
        forward = super().launch(batch)
        if self.countdown == 0 or len(forward.logits_RV) == 0:
            return forward
        self.countdown -= 1
        if self.countdown:
            return forward
        broken_RV = forward.logits_RV.clone()
        broken_RV[-1, 3:] = float("nan")
        return Forward(broken_RV, forward.seconds)


@pytest.fixture(scope="module")
def target() -> TargetModel:
    return target_of("llama")


@pytest.fixture(scope="module")
def shorter(target: TargetModel) -> Engine:
    """Its draft model's context is 64 tokens, the target's 400."""
    return start_engine(target, CONFIG, draft_model=draft_of("llama", 64), kept=GIVEN)


@pytest.fixture(scope="module")
def breaking(target: TargetModel) -> Engine:
    """Its draft model can break, and its context is longer than the target's."""
    config = replace(CONFIG, max_model_len=512)
    model = BreakingModel.from_model(correlated("llama", NOISE), config)
    return start_engine(target, CONFIG, draft_model=model, kept=GIVEN)


@pytest.fixture
def model(breaking: Engine) -> Iterator[BreakingModel]:
    """The breaking engine's draft model, whole again afterwards."""
    assert breaking.draft_model is not None
    draft = breaking.draft_model.model
    assert isinstance(draft, BreakingModel)
    yield draft
    has_broken, draft.countdown = draft.countdown == 0, 0
    assert has_broken, "nothing broke"


def run(engine: Engine, *requests: Request) -> tuple[dict[str, RequestStats], list[StepStats]]:
    for request in requests:
        engine.add(request)
    return finish(engine)


def refusals_of(steps: list[StepStats]) -> dict[str, int]:
    totals: dict[str, int] = {}
    for step in steps:
        for reason, count in step.refusals.items():
            totals[reason] = totals.get(reason, 0) + count
    return totals


@pytest.mark.parametrize("law", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("method", METHODS)
def test_a_request_outgrows_a_shorter_draft_model(shorter: Engine, method: str, law: SamplingParams) -> None:
    prompt = prompt_of(46)
    plain = reply(shorter, request_of("plain", prompt, law))
    outgrown, short, long = (
        request_of(f"{name} {method}", tokens, law, method, max_nodes=8)
        for name, tokens in (("outgrown", prompt), ("short", prompt[:20]), ("long", prompt_of(70)))
    )
    ended, steps = run(shorter, outgrown, short, long)
    assert outgrown.output.tolist() == plain
    assert refusals_of(steps) == {"context": 2}
    stats = ended[outgrown.id]
    assert stats.choice == "fallback"
    assert stats.method == "auto"
    assert "context ends after 64 tokens" in stats.reason
    assert set(stats.steps_by_method) == {method, "auto"}
    assert stats.counts.accepted > 0
    assert ended[short.id].choice == "requested"
    assert set(ended[short.id].steps_by_method) == {method}
    assert set(ended[long.id].steps_by_method) == {"auto"}


def test_a_longer_draft_model_drafts_to_the_targets_end(breaking: Engine) -> None:
    assert breaking.draft_model is not None
    assert breaking.draft_model.model.max_model_len > breaking.model.max_model_len
    prompt = prompt_of(breaking.model.max_model_len - GREEDY.max_tokens)
    plain = reply(breaking, request_of("plain", prompt))
    request = request_of("drafted", prompt, method="dynamic", max_nodes=8)
    ended, steps = run(breaking, request)
    assert request.output.tolist() == plain
    assert refusals_of(steps) == {}
    assert set(ended["drafted"].steps_by_method) == {"dynamic"}
    assert ended["drafted"].counts.accepted > 0


@pytest.mark.parametrize("countdown", [1, 2, 9], ids=["in the first forward", "inside a tree", "in a later step"])
def test_numbers_that_are_none_are_given_up_with_one_warning(
    target: TargetModel, model: BreakingModel, caplog: pytest.LogCaptureFixture, countdown: int
) -> None:
    engine = start_engine(target, CONFIG, draft_model=model, kept=GIVEN)  # each engine warns for itself
    prompts = [prompt_of(30, seed) for seed in range(4)]
    plain = [reply(engine, request_of(f"plain{seed}", prompt)) for seed, prompt in enumerate(prompts)]
    with caplog.at_level(logging.WARNING):
        for method, prompt, expected in zip([*METHODS, "dynamic"], prompts, plain, strict=True):
            request = request_of(f"{method}", prompt, method=method, max_nodes=8)
            engine.add(request)
            model.countdown = countdown
            ended, steps = finish(engine)
            assert model.countdown == 0
            assert request.output.tolist() == expected
            assert ended[request.id].choice == "fallback"
            assert ended[request.id].method == "auto"
            assert "not finite" in ended[request.id].reason
            assert refusals_of(steps) == {"nan": 1}
    assert [record.levelname for record in caplog.records if record.name == "gander.engine"] == ["WARNING"]
    assert "not finite" in caplog.text


def test_one_broken_request_leaves_its_neighbours_their_trees(breaking: Engine, model: BreakingModel) -> None:
    """The last row of a packed forward is broken: the last request's alone."""
    prompts = [prompt_of(20, seed) for seed in range(3)]
    plain = [reply(breaking, request_of(f"plain{seed}", prompt)) for seed, prompt in enumerate(prompts)]
    requests = [request_of(f"{seed}", prompt, method="linear", max_nodes=8) for seed, prompt in enumerate(prompts)]
    model.countdown = 1
    ended, steps = run(breaking, *requests)
    assert [request.output.tolist() for request in requests] == plain
    assert refusals_of(steps) == {"nan": 1}
    assert [ended[request.id].method for request in requests] == ["linear", "linear", "auto"]


def test_who_was_refused_goes_to_no_other_method_of_the_draft_model(breaking: Engine, model: BreakingModel) -> None:
    request = request_of("refused", prompt_of(20), method="linear", max_nodes=8)
    model.countdown = 1
    ended, steps = run(breaking, request)
    assert refusals_of(steps) == {"nan": 1}
    assert set(ended["refused"].steps_by_method) == {"auto"}
    assert ended["refused"].foretold_by_source.get("draft_model", 0) == 0
    assert ended["refused"].counts.drafted_by_source.get("draft_model", 0) == 0


def test_auto_goes_on_without_a_draft_model_that_breaks_with_what_it_knows(
    breaking: Engine, model: BreakingModel
) -> None:
    prompt = prompt_of(30)
    law = replace(GREEDY, max_tokens=120)
    plain = reply(breaking, request_of("plain", prompt, law))
    request = request_of("auto", prompt, law, "auto", max_nodes=8)  # named, so that no measured price decides
    model.countdown = 9
    ended, steps = run(breaking, request)
    assert request.output.tolist() == plain
    assert refusals_of(steps) == {"nan": 1}
    assert (ended["auto"].method, ended["auto"].choice) == ("auto", "fallback")
    assert ended["auto"].counts.accepted > 0
    assert ended["auto"].foretold_by_source["draft_model"] > 0
    replies = breaking.sessions.open(request.tenant, request.session_id).replies
    assert replies.arrays.counters[0] == 8 + request.num_output, "the prompt's end and the reply, once"


def test_a_token_that_the_draft_model_does_not_know(target: TargetModel) -> None:
    model = TargetModel.from_model(tiny("llama", vocab_size=150), CONFIG)
    engine = start_engine(target, CONFIG, draft_model=model, kept=GIVEN)
    known, unknown = prompt_of(20, 0, 150), prompt_of(20, 1)
    assert unknown.max() >= 150
    plain = [reply(engine, request_of(f"plain{place}", prompt)) for place, prompt in enumerate((known, unknown))]
    assert max(plain[0]) >= 150, "the target must come upon a token that the draft model does not have"
    prompts = {"later": known, "at once": unknown}
    requests = [request_of(name, prompt, method="dynamic", max_nodes=8) for name, prompt in prompts.items()]
    ended, steps = run(engine, *requests)
    assert [request.output.tolist() for request in requests] == plain
    assert refusals_of(steps) == {"vocabulary": 2}
    assert "knows no token" in ended["later"].reason
    assert set(ended["later"].steps_by_method) == {"dynamic", "auto"}
    assert set(ended["at once"].steps_by_method) == {"auto"}


def test_an_aborted_request_gives_its_blocks_back_at_once_and_its_neighbour_drafts_on(breaking: Engine) -> None:
    breaking.add(request_of("gone", prompt_of(20), method="dynamic", max_nodes=8))
    breaking.add(request_of("stays", prompt_of(20), method="linear"))
    breaking.step()
    breaking.step()
    [gone, stays] = breaking._scheduler.all()
    state = gone.drafter.active.state
    assert state is not None
    assert state.rows is not None
    num_held = breaking.pool.num_held
    assert breaking.abort("gone") is not None
    assert state.rows is None
    assert stays.rows is not None
    assert breaking.pool.num_held == stays.rows.table.num_blocks < num_held
    ended, _ = finish(breaking)
    assert ended["stays"].counts.accepted > 0


def test_a_step_with_no_row_for_a_tree_asks_the_draft_model_for_none(breaking: Engine) -> None:
    """Nobody would propose what grew, and it would hang on a root that is past when somebody does."""
    breaking.add(request_of("shrunk", prompt_of(20), method="dynamic", max_nodes=8))
    breaking.step()
    sequence = next(breaking._scheduler.all())
    state = sequence.drafter.active.state
    assert state is not None
    assert state.rows is not None
    num_read = state.rows.length
    step = SequenceStep.of(sequence, 1)
    assert step.end == sequence.request.num_tokens
    step.budget = DraftBudget(0, NodePrice(0.1), 0.5)
    breaking._drafting.propose([step])
    assert state.rows.length == num_read
    step.budget = DraftBudget(1)
    breaking._drafting.propose([step])
    assert state.rows.length == sequence.request.num_tokens > num_read
    finish(breaking)


@pytest.mark.parametrize("method", METHODS)
def test_without_a_draft_model_its_methods_are_rejected_by_name(target: TargetModel, method: str) -> None:
    engine = start_engine(target, CONFIG, kept=GIVEN)
    with pytest.raises(RequestRejected) as caught:
        engine.add(request_of("bad", prompt_of(5), method=method))
    assert caught.value.param == "speculation.method"
    assert caught.value.code == "no_draft_model"
    assert not engine.has_work
