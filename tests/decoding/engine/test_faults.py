"""Whatever is raised for one request ends that request with its cause; a stream beside it gets its plain tokens."""

from __future__ import annotations

import json
import weakref
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from decoding.core.events import Failed, Finished
from decoding.core.grammar import Grammar
from decoding.core.request import Request
from decoding.core.sampling_params import SamplingParams
from decoding.core.speculation_params import SpeculationParams
from decoding.core.tree import DraftTree, Verdict
from decoding.drafting import registry
from decoding.drafting.drafter import Drafter
from decoding.drafting.registry import StartDrafter
from decoding.drafting.sources import Sources
from decoding.engine.engine import Engine
from decoding.engine.fault import failed_by
from decoding.engine.isolation import Isolation
from decoding.engine.sequence import Sequence
from decoding.sampling import logprobs, sampler
from decoding.sampling.law import Law
from tests.asking import ask, encode

VICTIM_SEED = 666
PROMPT = encode("def add(a, b):\n    return a + b\n\ndef sub(a, b):\n    return a - b\n\n" * 3)
SCHEMA = Grammar("json_schema", json.dumps({"type": "array", "items": {"enum": ["one", "two"]}, "minItems": 40}))


class Fault(RuntimeError):
    """The injected one."""


class Faulty:
    """Stands before an object; after some calls of one of its methods, this raises. Copies of it do too."""

    def __init__(self, inner: Any, method: str, after: int) -> None:
        self._inner, self._method, self._left = inner, method, [after]

    def __getattr__(self, name: str) -> Any:
        value = self._copy if name == "deep_copy" else getattr(self._inner, name)
        return self._failing(value) if name == self._method else value

    def _failing(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def called(*arguments: Any) -> Any:
            self._left[0] -= 1
            if self._left[0] < 0:
                raise Fault
            return call(*arguments)

        return called

    def _copy(self) -> Faulty:
        copy = Faulty(self._inner.deep_copy(), self._method, 0)
        copy._left = self._left
        return copy


def faulty_drafter(method: str, fails: str, after: int) -> StartDrafter:
    """That of a drafting method, until `fails`, one of its own methods, has been called some times."""

    def start(request: Request, sources: Sources) -> Any:
        return Faulty(registry.METHODS[method].start(request, sources), fails, after)

    return start


def request_of(engine: Engine, name: str, seed: int, method: str, **asked: Any) -> Request:
    prediction = asked.pop("prediction", np.empty(0, np.int32))
    sampling = SamplingParams(max_tokens=60, temperature=0.8, seed=seed, **asked)
    return Request(
        id=name,
        prompt=PROMPT,
        sampling=sampling,
        speculation=SpeculationParams(method=method, max_nodes=8),
        eos_token_ids=engine.model.eos_token_ids,
        session_id=name,
        prediction=prediction,
    )


def sequence_of(engine: Engine, name: str) -> Sequence | None:
    return next((each for each in engine._scheduler.all() if each.request.id == name), None)


def run_beside_a_stream(
    engine: Engine,
    victim: Request,
    break_it: Callable[[Sequence], None] | None = None,
    start_drafter: StartDrafter | None = None,
) -> list[Failed]:
    """How requests ended that broke; fails where the stream, or what is left of the victim, is not as it was alone."""
    method = victim.speculation.method
    asked = SamplingParams(max_tokens=60, temperature=0.8, seed=1, ignore_eos=True)
    alone = ask(engine, PROMPT, asked).tokens
    stream = request_of(engine, "stream", 1, method, ignore_eos=True)
    engine.add(victim, start_drafter)  # first, so that the stream finds the rows that it is to run
    engine.add(stream)
    broken: list[Failed] = []
    while engine.has_work:
        sequence = sequence_of(engine, victim.id)
        if sequence is not None and break_it is not None and victim.num_output > 0:
            break_it(sequence)
            break_it = None
        result = engine.step()
        broken += result.of(Failed)
        assert victim.id not in [each.request_id for each in result.of(Finished)], "the fault was not met"
        engine.pool.check_integrity()
    assert stream.output.tolist() == alone
    assert engine.pool.num_held == 0
    return broken


def check_end(engine: Engine, broken: list[Failed], victim: Request, part: str) -> None:
    """One end, that names the part; what was given out is true, and the same request runs again in its session."""
    [end] = broken
    assert (end.request_id, end.code) == (victim.id, "broken_part")
    assert end.message.startswith(f"The {part} failed while running this request (")
    whole = ask(engine, PROMPT, victim.sampling).tokens
    assert victim.output.tolist() == whole[: victim.num_output]
    again = request_of(engine, victim.id, VICTIM_SEED, victim.speculation.method)
    engine.add(again)
    while engine.has_work:
        assert not engine.step().of(Failed)
    assert again.output.tolist() == ask(engine, PROMPT, again.sampling).tokens


@pytest.mark.parametrize(("method", "after"), [("observe_prefill", 0), ("propose", 0), ("propose", 3), ("observe", 2)])
def test_a_drafter(gosling: Engine, method: str, after: int) -> None:
    victim = request_of(gosling, "victim", VICTIM_SEED, "spine", ignore_eos=True)
    victim.tenant = f"{method} {after}"  # whose prompt nobody has run, so that its rows are learned from
    start = faulty_drafter("spine", method, after)
    check_end(gosling, run_beside_a_stream(gosling, victim, start_drafter=start), victim, "drafter")


@pytest.mark.parametrize(("method", "after"), [("probe", 0), ("probe", 2)])
def test_a_drafter_that_is_asked_for_chances(gosling: Engine, method: str, after: int) -> None:
    victim = request_of(gosling, "victim", VICTIM_SEED, "auto", ignore_eos=True)
    victim.speculation = SpeculationParams()
    start = faulty_drafter("auto", method, after)
    check_end(gosling, run_beside_a_stream(gosling, victim, start_drafter=start), victim, "drafter")


def test_a_reply_that_is_whole_stays_so_where_it_cannot_be_learned_from(gosling: Engine) -> None:
    num_met = 0

    def start(request: Request, sources: Sources) -> Drafter:
        drafter = registry.METHODS["spine"].start(request, sources)

        def observe(*_: object) -> None:
            nonlocal num_met
            if request.finish_reason is not None:
                num_met += 1
                raise RuntimeError("too late to matter")

        drafter.observe = observe  # type: ignore[method-assign]
        return drafter

    for place in range(100):  # until a last step has a tree
        if num_met:
            break
        request = request_of(gosling, f"whole-{place}", place, "spine", ignore_eos=True)
        gosling.add(request, start)
        ended: list[str] = []
        while gosling.has_work:
            result = gosling.step()
            assert not result.of(Failed)
            ended += [each.request_id for each in result.of(Finished)]
        assert ended == [request.id]
    assert num_met > 0


@pytest.mark.parametrize("method", ["begin", "grow", "propose"])
def test_a_tree_that_a_draft_model_grows(gosling: Engine, method: str) -> None:
    def break_it(sequence: Sequence) -> None:
        active = sequence.drafter.active
        assert active.state is not None
        assert active.state.grower is active.drafter
        active.state.grower = active.drafter = Faulty(active.drafter, method, 2)  # type: ignore[assignment]

    victim = request_of(gosling, "victim", VICTIM_SEED, "dynamic", ignore_eos=True)
    check_end(gosling, run_beside_a_stream(gosling, victim, break_it), victim, "drafter")


@pytest.mark.parametrize(
    "method", ["compute_bitmask", "consume_token", "try_consume_tokens", "compute_ff_tokens", "rollback", "deep_copy"]
)
def test_a_grammar(gosling: Engine, method: str) -> None:
    def break_it(sequence: Sequence) -> None:
        assert sequence.processors is not None
        matcher = sequence.processors.matcher
        assert matcher is not None
        matcher._matcher = Faulty(matcher._matcher, method, 3)

    victim = request_of(gosling, "victim", VICTIM_SEED, "spine", grammar=SCHEMA)
    check_end(gosling, run_beside_a_stream(gosling, victim, break_it), victim, "grammar")


def test_a_grammar_whose_reply_cannot_begin(gosling: Engine) -> None:
    def start(_request: Request, _sources: Sources) -> Drafter:
        raise Fault

    victim = request_of(gosling, "victim", VICTIM_SEED, "spine", grammar=SCHEMA)
    check_end(gosling, run_beside_a_stream(gosling, victim, start_drafter=start), victim, "drafter")


@pytest.mark.parametrize("name", ["penalties", "_tail"])
def test_logits_processors(gosling: Engine, name: str) -> None:
    def break_it(sequence: Sequence) -> None:
        setattr(sequence.processors, name, None)

    victim = request_of(
        gosling, "victim", VICTIM_SEED, "spine", presence_penalty=0.5, bad_words=((5, 6, 7),), ignore_eos=True
    )
    check_end(gosling, run_beside_a_stream(gosling, victim, break_it), victim, "logits processors")


def test_a_sampler(gosling: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    draw_along = sampler.draw_along

    def draw_or_fail(tree: DraftTree, logits_NV: torch.Tensor, law: Law, position: int) -> Verdict:
        if law.seed == VICTIM_SEED and position > len(PROMPT) + 4:
            raise Fault
        return draw_along(tree, logits_NV, law, position)

    victim = request_of(gosling, "victim", VICTIM_SEED, "spine", ignore_eos=True)
    with monkeypatch.context() as patched:
        patched.setattr(sampler, "draw_along", draw_or_fail)
        broken = run_beside_a_stream(gosling, victim)
    check_end(gosling, broken, victim, "sampler")


@pytest.mark.parametrize("asked", [{"logprobs": 0}, {"prompt_logprobs": 0}])
def test_log_probabilities(gosling: Engine, monkeypatch: pytest.MonkeyPatch, asked: dict[str, int]) -> None:
    def fail(*_: object) -> None:
        raise Fault

    victim = request_of(gosling, "victim", VICTIM_SEED, "spine", ignore_eos=True, **asked)
    with monkeypatch.context() as patched:
        patched.setattr(logprobs, "_fill", fail)
        broken = run_beside_a_stream(gosling, victim)
    check_end(gosling, broken, victim, "log probabilities")


@pytest.mark.parametrize("method", ["spine", "auto"])
@pytest.mark.parametrize("max_nodes", [8, None])
def test_a_prediction(gosling: Engine, method: str, max_nodes: int | None) -> None:
    def break_it(sequence: Sequence) -> None:
        assert sequence.prediction is not None
        sequence.prediction._edits = None  # type: ignore[assignment]

    victim = request_of(gosling, "victim", VICTIM_SEED, method, prediction=PROMPT, ignore_eos=True)
    victim.speculation = SpeculationParams(method=method, max_nodes=max_nodes)
    check_end(gosling, run_beside_a_stream(gosling, victim, break_it), victim, "prediction")


def test_a_fault_after_the_last_token_changes_nothing(gosling: Engine) -> None:
    sampling = SamplingParams(max_tokens=2, temperature=0.8, seed=VICTIM_SEED, ignore_eos=True)
    speculation = SpeculationParams(method="spine", max_nodes=8)
    request = Request(id="victim", prompt=PROMPT, sampling=sampling, speculation=speculation)
    gosling.add(request, faulty_drafter("spine", "observe", 0))
    ends = [(len(result.of(Finished)), len(result.of(Failed))) for result in steps(gosling)]
    assert sum(finished for finished, _ in ends) + sum(broken for _, broken in ends) == 1


def test_nothing_that_was_raised_holds_the_step(gosling: Engine) -> None:
    def fail(_item: object) -> None:
        raise Fault

    gosling.add(request_of(gosling, "victim", VICTIM_SEED, "none"))
    isolation, sequence = Isolation(), sequence_of(gosling, "victim")
    assert sequence is not None
    isolation.each([SimpleNamespace(sequence=sequence)], fail)
    assert [end.request_id for end in isolation.retire_failed(gosling._scheduler)] == ["victim"]
    alive = weakref.ref(isolation)
    del isolation
    assert alive() is None, "a frame that the exception came through is kept"


DEVICE_ERRORS = {
    "memory": torch.OutOfMemoryError("CUDA out of memory"),
    "address": torch.AcceleratorError("CUDA error: an illegal memory access was encountered"),
    "kernel": RuntimeError("Triton Error [CUDA]: an illegal memory access was encountered"),
}


@pytest.mark.parametrize("error", DEVICE_ERRORS)
@pytest.mark.parametrize("part", ["store.commit", "_drafting.probe", "_drafting.propose"])
def test_a_device_that_fails_ends_no_request_but_the_step(
    gosling: Engine, monkeypatch: pytest.MonkeyPatch, part: str, error: str
) -> None:
    """Another worker goes on with all of them."""

    def fails(*_arguments: object) -> None:
        raise DEVICE_ERRORS[error]

    requests = [request_of(gosling, name, seed, "auto") for seed, name in enumerate(("one", "other"))]
    for request in requests:
        gosling.add(request)
    owner, name = part.split(".")
    with monkeypatch.context() as patched:
        patched.setattr(getattr(gosling, owner), name, fails)
        with pytest.raises(RuntimeError) as caught:
            run_all(gosling)
    assert caught.value is DEVICE_ERRORS[error]
    assert all(gosling.abort(request.id) is not None for request in requests)


def run_all(engine: Engine) -> None:
    while engine.has_work:
        assert not engine.step().of(Failed)


def steps(engine: Engine) -> Iterator[Any]:
    while engine.has_work:
        yield engine.step()


@pytest.mark.parametrize("method", ["none", "spine", "auto"])
@pytest.mark.parametrize(
    "grammar", [Grammar("regex", "(x{1,1000}){1,1000}"), Grammar("lark", 'start: a{1000000}\na: "x"')]
)
def test_a_grammar_that_grows_too_complex(gosling: Engine, grammar: Grammar, method: str) -> None:
    victim = request_of(gosling, "victim", VICTIM_SEED, method, grammar=grammar)
    [end] = run_beside_a_stream(gosling, victim)
    assert (end.request_id, end.code) == ("victim", "broken_grammar")
    assert end.message.startswith("The grammar cannot be followed any further: ")


@pytest.mark.parametrize("kind", [ValueError, BaseException])
def test_of_a_fault_the_log_has_the_place_and_nothing_that_the_exception_says(
    kind: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    said = " ".join(("token", "1234"))
    try:
        raise kind(said)
    except BaseException as error:
        end = failed_by("victim", error)
    assert "test_faults.py" in caplog.text
    assert "Request victim ends" in caplog.text
    assert said not in caplog.text + end.message
