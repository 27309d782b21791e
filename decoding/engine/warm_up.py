"""The first requests of an engine, nobody's: every kind of step runs once, so that nothing is compiled later; then some
run together, which tells what the host takes for a plain step and for a drafted one.

Owns what they are. Knows an engine by what it is asked.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

import numpy as np

from decoding.config import EngineConfig
from decoding.core.request import Request
from decoding.core.sampling_params import SamplingParams
from decoding.core.speculation_params import SpeculationParams
from decoding.engine.limits import Limits
from decoding.engine.step_result import StepResult
from decoding.model.target_model import TargetModel

PROMPT_LEN, REPLY_LEN = 6, 3
TOGETHER = 8  # requests on a device: a lone one does not tell what each of several takes
MEASURED_NODES = 8


class Stepping(Protocol):
    """What is asked of an engine."""

    limits: Limits
    config: EngineConfig

    @property
    def has_work(self) -> bool: ...

    def add(self, request: Request) -> None: ...

    def step(self) -> StepResult: ...


def run_first(engine: Stepping, model: TargetModel, has_draft_model: bool) -> None:
    """Run every kind of step."""
    kinds = [*_requests(model, _kinds(has_draft_model))]
    together = engine.limits.max_running if model.device.type == "cpu" else 1  # a device captures steps by their size
    for first in range(0, len(kinds), together):
        _run(engine, kinds[first : first + together])
    drafted = SpeculationParams(method="auto", max_nodes=min(MEASURED_NODES, engine.config.max_nodes))
    if model.device.type == "cpu":  # whose plain steps are among those
        _run(engine, _requests(model, [(drafted, 0.0, None)]))
    else:
        count = min(TOGETHER, engine.limits.max_running)
        for speculation in (SpeculationParams(method="none"), drafted):
            _run(engine, _requests(model, [(speculation, 0.0, None)] * count))


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
    prompt = np.arange(min(PROMPT_LEN, model.max_model_len // 2), dtype=np.int32) % model.vocab_size
    for number, (speculation, temperature, logprobs) in enumerate(kinds):
        yield Request(
            id=str(number),
            prompt=prompt,
            sampling=SamplingParams(
                max_tokens=min(REPLY_LEN, len(prompt)),
                temperature=temperature,
                top_p=0.9,
                ignore_eos=True,
                logprobs=logprobs,
            ),
            speculation=speculation,
        )
