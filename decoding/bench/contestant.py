"""One engine with one way of drafting, that answers prompts one at a time, and rounds of several such.

Invariant: a reply's seconds run from the submission of the prompt to its last token, prefill included.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from random import Random

import numpy as np
from numpy.typing import NDArray

from decoding.core.events import Failed, Finished
from decoding.core.request import Request
from decoding.core.sampling_params import SamplingParams
from decoding.core.speculation_params import SpeculationParams
from decoding.engine.engine import Engine
from decoding.engine.step_result import StepResult

WARM_UP_TOKENS = 16
_NUMBERS = count()


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One prompt to answer: int32 [p], with at most `max_tokens` new tokens; seed: of the noise.

    prediction: int32, the expected reply, or empty.
    """

    prompt: NDArray[np.int32]
    max_tokens: int
    temperature: float
    seed: int
    ignore_eos: bool = False
    prediction: NDArray[np.int32] = field(default_factory=lambda: np.empty(0, np.int32))


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """One answer. tokens: int32 [t], the end token included.

    forwards: target forwards that verified a root: plain decoding has one per token, and prefill chunks before the last
    do not count. drafted, accepted: nodes. cpu_seconds: of all threads of this process.
    """

    tokens: NDArray[np.int32]
    seconds: float
    forwards: int
    drafted: int = 0
    accepted: int = 0
    cpu_seconds: float = 0.0

    @property
    def tokens_per_second(self) -> float:
        return len(self.tokens) / self.seconds


def step(engine: Engine) -> StepResult:
    """Run one step. Raises RuntimeError if a request broke, since a benchmark would wait forever for its end."""
    result = engine.step()
    for failed in result.of(Failed):
        raise RuntimeError(f"{failed.request_id}: {failed.message}")
    return result


class Contestant:
    """Our engine with one method, in a session that learns from this contestant's requests only.

    label: names its row. is_cold: start an empty session for every prompt.
    """

    def __init__(self, engine: Engine, label: str, speculation: SpeculationParams, is_cold: bool = False) -> None:
        self.label = label
        self._engine = engine
        self._speculation = speculation
        self._is_cold = is_cold
        self._number = next(_NUMBERS)  # no other contestant of this process shares its sessions
        self._session = 0
        self._num_answers = 0

    def forget(self) -> None:
        """Continue in an empty session."""
        self._session += 1

    def answer(self, task: Task) -> Reply:
        if self._is_cold:
            self.forget()
        self._num_answers += 1
        request = Request(
            id=f"{self._number}-{self._num_answers}",
            prompt=task.prompt,
            sampling=SamplingParams(
                max_tokens=task.max_tokens,
                temperature=task.temperature,
                seed=task.seed,
                ignore_eos=task.ignore_eos,
            ),
            speculation=self._speculation,
            eos_token_ids=self._engine.model.eos_token_ids,
            session_id=f"{self._number}-{self._session}",
            prediction=task.prediction,
        )
        started, cpu_started = time.perf_counter(), time.process_time()
        self._engine.add(request)
        finished = None
        while finished is None:
            finished = next(iter(step(self._engine).of(Finished)), None)
        seconds, cpu_seconds = time.perf_counter() - started, time.process_time() - cpu_started
        return Reply(
            tokens=request.output.copy(),
            seconds=seconds,
            forwards=finished.stats.target_forwards,
            drafted=finished.stats.counts.drafted,
            accepted=finished.stats.counts.accepted,
            cpu_seconds=cpu_seconds,
        )


def warm_up(contestants: Sequence[Contestant], task: Task) -> None:
    """Have everybody answer a little, and forget it."""
    for contestant in contestants:
        contestant.answer(replace(task, max_tokens=WARM_UP_TOKENS))
        contestant.forget()


def in_rounds(
    contestants: Sequence[Contestant], tasks: Sequence[Task], on_answer: Callable[[], object] = lambda: None
) -> list[list[Reply]]:
    """Every contestant's replies to all tasks.

    In a round every contestant answers the same task once, in a new random order, so that a slow minute of the machine
    affects all of them.
    """
    replies: list[list[Reply]] = [[] for _ in contestants]
    for number, task in enumerate(tasks):
        order = list(range(len(contestants)))
        Random(number).shuffle(order)
        for place in order:
            replies[place].append(contestants[place].answer(task))
            on_answer()
    return replies
