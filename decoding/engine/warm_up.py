"""The first requests of an engine, nobody's: every kind of step runs once, so that nothing is compiled later.

Owns what they are. Knows an engine by what it is asked.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

import numpy as np

from decoding.core.request import Request
from decoding.core.sampling_params import SamplingParams
from decoding.core.speculation_params import SpeculationParams
from decoding.core.step_result import StepResult
from decoding.engine.limits import Limits
from decoding.model.target_model import TargetModel

NUM_TOKENS = 12  # of prompts and replies
NUM_TOGETHER = 4  # requests that run at once in some steps
_MOST_PREDICTED = 4  # times the prompt
MEASURED_ROUNDS = 5
MEASURED_SECONDS = 2.0  # after which no further round is begun


class Stepping(Protocol):
    """What is asked of an engine."""

    limits: Limits

    @property
    def has_work(self) -> bool: ...

    def add(self, request: Request) -> None: ...

    def step(self) -> StepResult: ...


def run_first(engine: Stepping, model: TargetModel, has_draft_model: bool) -> None:
    """Run every kind of step."""
    for request in _requests(model, _kinds(has_draft_model)):
        _run(engine, [request])


def run_measured(engine: Stepping, model: TargetModel, most_nodes: int, has_draft_model: bool) -> None:
    """Run steps that differ in what they have beside their forwards, the kinds in turn, for a moment: the engine learns
    from its steps what they take. most_nodes: that a request may ask for."""
    started = time.perf_counter()
    for _ in range(MEASURED_ROUNDS):
        for speculation, at_once in _measured(most_nodes, has_draft_model):
            _run(engine, _requests(model, [(speculation, 0.0, None)] * min(at_once, engine.limits.max_open)))
        if time.perf_counter() - started > MEASURED_SECONDS:
            break


def _measured(most_nodes: int, has_draft_model: bool) -> Iterator[tuple[SpeculationParams, int]]:
    """How to draft, and for how many at once. A plain call looks for trees; a prediction drafts whatever the model
    says; without the stores' sources no row is learned from."""
    plain, many, few = SpeculationParams(method="none"), min(8, most_nodes), min(2, most_nodes)
    yield plain, 1
    yield plain, NUM_TOGETHER
    if most_nodes == 0:
        return
    yield SpeculationParams(), 1
    yield SpeculationParams(max_nodes=few, sources=frozenset(("prediction", "context"))), 1
    yield SpeculationParams(max_nodes=many, sources=frozenset(("prediction", "context"))), 1
    yield SpeculationParams(max_nodes=many, sources=frozenset(("prediction", "context", "adjacency", "ngram"))), 1
    if has_draft_model:
        for depth in (1, 2):
            yield SpeculationParams(method="dynamic", max_nodes=min(depth, most_nodes), max_depth=depth), 1


def _run(engine: Stepping, requests: Iterable[Request]) -> None:
    for request in requests:
        engine.add(request)
    while engine.has_work:
        engine.step()


def _kinds(has_draft_model: bool) -> list[tuple[SpeculationParams, float, int | None]]:
    """How to draft, at what temperature, and whether log probabilities are wanted."""
    methods = ("auto", "fixed", "eagle", "none") if has_draft_model else ("auto", "none")
    found = [(SpeculationParams(method=method), temperature, None) for method in methods for temperature in (0.0, 1.0)]
    return [*found, (SpeculationParams(method="stand", verification="rejection"), 1.0, 0)]


def _requests(model: TargetModel, kinds: Sequence[tuple[SpeculationParams, float, int | None]]) -> Iterator[Request]:
    num_tokens = min(NUM_TOKENS, model.max_model_len // 2)
    prompt = np.arange(num_tokens, dtype=np.int32) % model.vocab_size
    for number, (speculation, temperature, logprobs) in enumerate(kinds):
        yield Request(
            id=str(number),
            prompt=prompt,
            sampling=SamplingParams(
                max_tokens=num_tokens, temperature=temperature, top_p=0.9, ignore_eos=True, logprobs=logprobs
            ),
            speculation=speculation,
            prediction=np.tile(prompt, 0 if speculation.sources is None else _MOST_PREDICTED),
        )
