"""The first requests of an engine, nobody's: every kind of step runs once, so that nothing is compiled later.

Owns what they are, and what their steps tell of the seconds beside the forwards. Knows an engine by what it is asked.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from decoding.core.request import Request
from decoding.core.sampling_params import SamplingParams
from decoding.core.speculation_params import SpeculationParams
from decoding.core.step_result import StepResult
from decoding.drafting import registry
from decoding.drafting.revision import prediction
from decoding.model.target_model import TargetModel
from decoding.sampling import logits_processors

NUM_TOKENS = 12  # of prompts and replies


class Stepping(Protocol):
    """What is asked of an engine."""

    @property
    def has_work(self) -> bool: ...

    def add(self, request: Request) -> None: ...

    def step(self) -> StepResult: ...


def compile_kernels() -> None:
    """Compile what drafters, logits processors and predictions call; cached on disk between starts."""
    registry.warm_up()
    logits_processors.warm_up()
    prediction.warm_up()


def seconds_beside_forwards(engine: Stepping, model: TargetModel, has_draft_model: bool) -> tuple[float, float]:
    """Run the requests; the least seconds of a plain step beside its forward, and how many more drafting takes."""
    beside: dict[bool, list[float]] = {False: [], True: []}  # of steps that drafted or did not
    for request in _requests(model, has_draft_model):
        engine.add(request)
        while engine.has_work:
            stats = engine.step().stats
            if stats is not None and stats.prefill_rows == 0:
                forwards = stats.phase_seconds["forward"] + stats.phase_seconds["draft_model"]
                beside[stats.rows > 1].append(stats.step_seconds - forwards)
    plain = min(beside[False], default=0.0)
    return plain, max(0.0, min(beside[True], default=plain) - plain)


def _requests(model: TargetModel, has_draft_model: bool) -> list[Request]:
    num_tokens = min(NUM_TOKENS, model.max_model_len // 2)
    prompt = np.arange(num_tokens, dtype=np.int32) % model.vocab_size
    methods = ("auto", "fixed", "eagle", "none") if has_draft_model else ("auto", "none")
    kinds = [(method, temperature, "match", None) for method in methods for temperature in (0.0, 1.0)]
    return [
        Request(
            id="",
            prompt=prompt,
            sampling=SamplingParams(
                max_tokens=num_tokens, temperature=temperature, top_p=0.9, ignore_eos=True, logprobs=logprobs
            ),
            speculation=SpeculationParams(method=method, verification=verification),
        )
        for method, temperature, verification, logprobs in (*kinds, ("stand", 1.0, "rejection", 0))
    ]
